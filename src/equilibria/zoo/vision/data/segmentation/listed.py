"""Images and masks of a published data set, by the names of their files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from equilibria.run.data.errors import DataError
from equilibria.words import others
from equilibria.zoo.io import headers
from equilibria.zoo.vision.data.segmentation.checked import check_sizes, content, counts
from equilibria.zoo.vision.data.segmentation.sets import Encoded, MaskedImages, Size

__all__ = ["Pairs", "images_of"]

Pairs = Sequence[tuple[str, str]]
"""Names of images with those of their masks, below one folder."""


def images_of(
    root: Path,
    splits: Mapping[str, Pairs],
    *,
    size: Size | None,
    numbers: np.ndarray | Callable[[np.ndarray, str], np.ndarray],
    meaning: bytes = b"",
) -> tuple[dict[str, MaskedImages], str]:
    """Return the images of each split, on disk until they are used, and a checksum of all files.

    Each file is decoded once, the first time that these files are seen.

    Args:
        root: Folder of the files.
        splits: Names by split.
        size: Height and width that images and masks are brought to; None for those they have.
        numbers: As `Encoded` takes it.
        meaning: What a function of `numbers` depends on, for the checksum.

    Raises:
        DataError: If a file is missing or damaged, a mask has another size than its image, or a
            value that stands for nothing; the message names it.
    """
    names = [name for pairs in splits.values() for name, _ in pairs]
    masks = [name for pairs in splits.values() for _, name in pairs]
    if lacking := [name for name in (*names, *masks) if not (root / name).is_file()]:
        raise DataError(
            f"{root / lacking[0]} is missing{others(lacking)}: unpack the data set again"
        )
    scanned, checksum = headers.scan(root, names)
    of_masks, mask_checksum = headers.scan(root, masks)
    stored = [(header.height, header.width) for header in scanned]
    table = b"" if callable(numbers) else numbers.tobytes()
    total = hashlib.sha256(f"{checksum}{mask_checksum}".encode() + meaning + table).hexdigest()

    source = Encoded(
        read=content,
        images=[str(root / name) for name in names],
        masks=[str(root / name) for name in masks],
        mode="RGB",
        sizes=[size or each for each in stored],
        stored=stored,
        numbers=numbers,
    )
    check_sizes(source, of_masks)
    counts(replace(source, sizes=stored), total)
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
    return found, f"sha256:{total}"
