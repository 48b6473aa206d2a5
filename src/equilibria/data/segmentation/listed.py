"""Images and masks of a published data set, by the names of their files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from equilibria.data.errors import DataError, reading
from equilibria.data.images import headers
from equilibria.data.regular import open_file
from equilibria.data.segmentation.sets import Encoded, MaskedImages, Size

__all__ = ["Pairs", "images_of"]

Pairs = Sequence[tuple[str, str]]
"""Names of images with those of their masks, below one folder."""


def images_of(
    root: Path,
    splits: Mapping[str, Pairs],
    *,
    size: Size | None,
    numbers: np.ndarray | Callable[[np.ndarray, str], np.ndarray],
) -> tuple[dict[str, MaskedImages], str]:
    """Return the images of each split, on disk until they are used, and a checksum of all files.

    Args:
        root: Folder of the files.
        splits: Names by split.
        size: Height and width that images and masks are brought to; None for those they have.
        numbers: As `Encoded` takes it.

    Raises:
        DataError: If a file is missing, or an image cannot be read; the message names it.
    """
    names = [name for pairs in splits.values() for name, _ in pairs]
    masks = [name for pairs in splits.values() for _, name in pairs]
    if lacking := [name for name in (*names, *masks) if not (root / name).is_file()]:
        more = f" (and {len(lacking) - 1:,} more)" if lacking[1:] else ""
        raise DataError(f"{root / lacking[0]} is missing{more}: unpack the data set again")
    scanned, checksum = headers.scan(root, names)
    _, of_masks = headers.scan(root, masks)
    stored = [(header.height, header.width) for header in scanned]

    def content(name: str) -> bytes:
        with reading(root / name), open_file(root / name) as file:
            return file.read()

    source = Encoded(
        read=content,
        images=names,
        masks=masks,
        mode="RGB",
        sizes=[size or each for each in stored],
        stored=stored,
        numbers=numbers,
    )
    found: dict[str, MaskedImages] = {}
    begin = 0
    for split, pairs in splits.items():
        places = range(begin, begin + len(pairs))
        found[split] = MaskedImages(
            names=[Path(name).stem for name, _ in pairs],
            sizes=[source.sizes[k] for k in places],
            channels=3,
            source=source,
            places=places,
        )
        begin += len(pairs)
    key = hashlib.sha256(f"{checksum}{of_masks}".encode()).hexdigest()
    return found, f"sha256:{key}"
