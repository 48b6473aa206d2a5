"""An image as a run's network is to see it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, reading
from equilibria.zoo.io import decode
from equilibria.zoo.io.decode import Box
from equilibria.zoo.vision.task.seen import Seen


@dataclass(frozen=True)
class Sight:
    """An image, and how large it was.

    Attributes:
        path: of its file.
        pixels: float32, normalised as in training, (channels, height, width).
        size: height and width of the upright image in the file.
    """

    path: Path
    pixels: Tensor
    size: tuple[int, int]


def sight(path: Path, seen: Seen) -> Sight:
    """Read an image as the run has read its own.

    It is turned upright, converted to the run's colours, brought to its size in the same way, and
    normalised by the same numbers. Where a run took images as they were, a classifier's are brought
    to their shape by the middle part of that ratio; those for segmentation keep their size.

    Raises:
        DataError: the file cannot be read, is no image, or is damaged; the message names it.
    """
    content = _content(path)
    resize, found = seen.resize, list[tuple[int, int]]()
    channels, high, wide = seen.shape
    keep = resize is None and seen.kind == "segmentation"
    if resize is not None:
        high, wide = resize.size

    def part(height: int, width: int) -> Box:
        found.append((height, width))
        if resize is not None and resize.fit == "stretch":
            return 0.0, 0.0, float(height), float(width)
        scale = min(height / high, width / wide) * (1.0 if resize is None else resize.share)
        tall, broad = scale * high, scale * wide
        return (height - tall) / 2, (width - broad) / 2, tall, broad

    mode = "RGB" if channels == 3 else "L"
    if keep:
        values = original(path, content, mode)
        found.append((values.shape[1], values.shape[2]))
    else:
        area = resize is not None and resize.filter == "area"
        values = decode.pixels(content, path, mode, (high, wide), part, area)
    pixels = torch.from_numpy(np.ascontiguousarray(values)) / 255
    if seen.statistics is not None:
        pixels = seen.statistics.apply(pixels[None])[0]
    return Sight(path, pixels, found[0])


def original(path: Path, content: bytes | None = None, mode: str = "RGB") -> np.ndarray:
    """Return an image at its own size, upright, uint8 (channels, height, width).

    Raises:
        DataError: as `sight`.
    """
    content = _content(path) if content is None else content
    return decode.pixels(content, path, mode, None)


def _content(path: Path) -> bytes:
    with decode.open_image(path) as file, reading(path):
        return file.read()


# --- unlabelled -----------------------------------------------------------------------------------

# Batches of a user's own images for a network to look at, without labels.


def iterate_batches(
    paths: Sequence[Path], seen: Seen, batches: int, size: int, seed: int
) -> Iterator[Tensor]:
    """Yield batches (size, channels, height, width) of images in random order.

    Images of one size make a batch. Where no more of them are left, the batches that have begun
    follow as they are, the fullest first.

    Args:
        paths: of the images.
        seen: how a run has seen its own.
        batches: how many, at most.
        size: images of each.
        seed: of the order.

    Warns:
        UserWarning: images could not be read, and are left out; the message names the first.
    """
    waiting: dict[tuple[int, ...], list[Tensor]] = {}
    errors: list[str] = []
    given = 0
    for place in torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed)).tolist():
        if given == batches:
            break
        try:
            pixels = sight(paths[place], seen).pixels
        except DataError as error:
            errors.append(str(error))
            continue
        begun = waiting.setdefault(tuple(pixels.shape), [])
        begun.append(pixels)
        if len(begun) == size:
            yield torch.stack(waiting.pop(tuple(pixels.shape)))
            given += 1
    if errors:
        warnings.warn(
            f"{len(errors)} of {len(paths)} images are left out: {errors[0]}", stacklevel=2
        )
    rest = sorted(waiting.values(), key=len, reverse=True)
    yield from (torch.stack(begun) for begun in rest[: batches - given])
