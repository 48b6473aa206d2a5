"""Images and masks in files, looked at once before anything is learned from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.errors import DataError, reading
from equilibria.run.data.progress import tracked
from equilibria.run.data.regular import open_file
from equilibria.zoo.io import decode, kept
from equilibria.zoo.io.headers import Header
from equilibria.zoo.vision.data.segmentation.sets import Encoded

__all__ = ["check_sizes", "content", "counts"]

# A part of the name of every file in the cache: another check must not take this one's word.
_FORMAT = 2


def content(name: str) -> bytes:
    """The bytes of a file.

    Raises:
        DataError: If it cannot be read, or is no regular file.
    """
    with reading(name), open_file(Path(name)) as file:
        return file.read()


def check_sizes(source: Encoded, masks: Sequence[Header]) -> None:
    """Raise DataError if a mask has another size than its image, by its header."""
    for image, mask, size, header in zip(
        source.images, source.masks, source.stored, masks, strict=True
    ):
        if header[:2] != size:
            raise DataError(
                f"{mask} has {header.height} x {header.width} pixels (height x width) and its "
                f"image {image} has {size[0]} x {size[1]}: a mask must have the size of its "
                "image, once both are turned upright by their Exif orientation"
            )


def counts(source: Encoded, key: str) -> np.ndarray:
    """How many pixels of each class every mask has: every file is decoded for it.

    The numbers are kept in the user's cache, so that the same files are decoded once only.

    Args:
        source: The files, in the size that they have.
        key: Of all that is in the files, and of what values stand for.

    Returns:
        int64, ``(count, 256)``.

    Raises:
        DataError: If a file cannot be read or is damaged, or a mask has a value that stands for
            nothing; the message names it.
    """

    def of(place: int) -> np.ndarray:
        source.image(place)
        return np.bincount(source.mask(place).numpy().ravel(), minlength=256)

    def make() -> dict[str, torch.Tensor]:
        found = decode.in_threads(of, range(len(source.images)))
        rows = list(tracked(found, len(source.images), "Looking at images and masks"))
        return {"counts": torch.from_numpy(np.stack(rows))}

    return kept.tensors(f"images/masks-{_FORMAT}-{key[:24]}", make)["counts"].numpy()
