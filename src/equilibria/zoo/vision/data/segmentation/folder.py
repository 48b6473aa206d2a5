"""A user's folder of images and masks."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.dataset import UserData
from equilibria.run.data.storage import DataError, read_errors
from equilibria.words import others
from equilibria.zoo.io import decode, headers
from equilibria.zoo.io.headers import Header
from equilibria.zoo.io.layout import STRAY, TEST, TRAIN, hold_out, name_stems, read_parts
from equilibria.zoo.vision.data.segmentation.masks import (
    VOID,
    Encoded,
    SegmentationSet,
    Size,
    check_sizes,
    content,
    counts,
    palette,
)

IMAGES, MASKS, CLASSES = "images", "masks", "classes.txt"

EXPECTED = (
    f"expected FOLDER/{IMAGES}/NAME.jpg with FOLDER/{MASKS}/NAME.png, or both in FOLDER/train and "
    f"FOLDER/test; and FOLDER/{CLASSES} with the name of a class on each line"
)

_VOID = ("void", "ignore", "unlabelled", "unlabeled")
_VALUE = re.compile(r"(\d+)\s*:\s*(\S.*)")
_LOSSY = (".jpg", ".jpeg")
_APART = 16
"""By how much red, green or blue of two classes must differ to be seen."""


@dataclass(frozen=True)
class MaskClasses:
    """What the values of masks stand for.

    Attributes:
        labels: Names of the classes, in the order of their numbers.
        numbers: The class of each value, int16 ``(256,)``; `VOID` for none, -1 for a value that is
            not listed.
    """

    labels: tuple[str, ...]
    numbers: np.ndarray

    @classmethod
    def read(cls, path: Path) -> MaskClasses:
        """Read classes.txt: a name on each line, or ``VALUE: name`` on each.

        Without values, the first line is value 0. A class called void, ignore or unlabelled does
        not count, and neither does the value 255. Empty lines and those that begin with ``#`` are
        left out.

        Raises:
            DataError: If it is missing or no text, or a name or a value is there twice.
        """
        if not path.is_file():
            raise DataError(
                f"{path} is missing: write the name of a class on each line, in the order of the "
                "numbers that masks have, from 0; or 'VALUE: name' on each line"
            )
        with read_errors(path):
            try:
                text = path.read_text("utf-8-sig")  # editors may begin it with a mark
            except UnicodeDecodeError:
                raise DataError(f"{path} is not UTF-8 text: save it as UTF-8") from None
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        matches = [_VALUE.fullmatch(line) for line in lines]
        if any(matches) and not all(matches):
            odd = lines[[m is None for m in matches].index(True)]
            raise DataError(f"{path}: '{odd}' has no value, and other lines are 'VALUE: name'")
        pairs = [
            (int(match[1]), match[2]) if match else (number, line)
            for number, (line, match) in enumerate(zip(lines, matches, strict=True))
        ]
        for what, found in (("name", [n for _, n in pairs]), ("value", [v for v, _ in pairs])):
            twice = [each for each, count in Counter(found).items() if count > 1]
            if twice:
                raise DataError(f"{path} lists the {what} {twice[0]} twice: each class has its own")
        if wrong := [value for value, _ in pairs if value > VOID]:
            raise DataError(f"{path} lists the value {wrong[0]}: masks have values from 0 to 255")
        known = [(value, name) for value, name in pairs if name.lower() not in _VOID]
        for name in [name for value, name in known if value == VOID]:
            warnings.warn(
                f"{path} calls the value {VOID} '{name}', and it always means void: to have it "
                "learned, give the class another value there and in the masks",
                stacklevel=3,
            )
        known = [(value, name) for value, name in known if value != VOID]
        if len(known) < 2:
            found = f"a single class, {known[0][1]}" if known else "no classes"
            raise DataError(f"{path} lists {found}: at least two are needed, besides void")
        numbers = np.full(256, -1, np.int16)
        numbers[VOID] = VOID
        numbers[[value for value, _ in pairs]] = VOID
        numbers[[value for value, _ in known]] = np.arange(len(known))
        return cls(tuple(name for _, name in known), numbers)


def load(
    root: str | os.PathLike[str],
    *,
    size: Size | None = None,
    channels: int | None = None,
    whole: bool = False,
) -> SegmentationSet:
    """Find the images and masks of a folder, and check that they fit together.

    ``root/images`` and ``root/masks`` have files of the same names but for their endings; masks are
    PNG files whose values, grey or of a palette, are numbers of classes, which ``classes.txt``
    names (`MaskClasses.read`). A tenth of the images, by a fixed seed, is then the test part.
    Or both folders are in ``root/train`` and ``root/test``, and perhaps in ``root/valid``; without
    ``test``, the validation images are the test images. Images are rotated upright according to
    Exif. All files are decoded once: damaged ones, and masks with values that no class has, are
    found before anything is learned from them.

    Args:
        root: The folder.
        size: Height and width that images and masks are brought to; None for those they have.
        channels: 3 or 1, to convert all images to RGB or grey; None for images that are all RGB or
            all grey.
        whole: Whether all images of a folder without parts are test images, to evaluate a model on
            that has learned from others; there are then no training images.

    Raises:
        DataError: If that is not what the folder is; the message names the file.
    """
    path = Path(root).expanduser()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: {EXPECTED}")
    test = path / TEST
    advice = f"put test images into {test / IMAGES} and their masks into {test / MASKS}"
    parts = read_parts(path, IMAGES, _pairs, advice, EXPECTED)
    classes = MaskClasses.read(path / CLASSES)
    pairs = [pair for part in parts.values() for pair in part]
    images, masks = [image for image, _ in pairs], [mask for _, mask in pairs]
    scanned, checksum = headers.scan(path, images)
    if channels is None:
        channels = headers.channels_of(path, images, scanned)
    else:
        headers.check_depth(path, images, scanned)
    source = Encoded(
        read=content,
        images=[str(path / name) for name in images],
        masks=[str(path / name) for name in masks],
        mode="RGB" if channels == 3 else "L",
        stored=[header[:2] for header in scanned],
        size=size,
        numbers=classes.numbers,
    )
    of_masks, mask_checksum = headers.scan(path, masks)
    _check_kind(source, of_masks)
    check_sizes(source, of_masks)
    # Values first, whatever they stand for: another classes.txt need not decode the files again.
    plain = replace(source, size=None, numbers=np.arange(256, dtype=np.int16))
    found = counts(plain, hashlib.sha256(f"{checksum}{mask_checksum}".encode()).hexdigest())
    splits = _splits(parts, whole)
    _check_values(source, found, classes, path / CLASSES)
    _check_learned(found if whole else found[splits[TRAIN].numpy()], classes, path, whole)
    values = [int(np.flatnonzero(classes.numbers == k)[0]) for k in range(len(classes.labels))]
    every = source.whole()
    key = f"{classes.labels}{classes.numbers.tolist()}{checksum}{mask_checksum}"
    return SegmentationSet(
        title=path.resolve().name,
        train=every.select(splits[TRAIN]),
        test=every.select(splits[TEST]),
        valid=every.select(splits["valid"]) if "valid" in splits else None,
        labels=classes.labels,
        colors=_colors(source, of_masks, values),
        values=tuple(values),
        checksum=f"sha256:{hashlib.sha256(key.encode()).hexdigest()}",
    )


def _pairs(root: Path, part: str) -> list[tuple[str, str]]:
    """Images and masks of a part, which must fit together."""
    images, masks = _files(root, part, IMAGES), _files(root, part, MASKS)
    if not images:
        raise DataError(f"{root / part / IMAGES} has no files: {EXPECTED}")
    if lossy := [name for name in masks.values() if Path(name).suffix.lower() in _LOSSY]:
        raise DataError(
            f"{root / lossy[0]} is a JPEG, which blurs the numbers of classes: masks must be PNG "
            "files"
        )
    if lacking := sorted(set(images) - set(masks)):
        raise DataError(
            f"{root / images[lacking[0]]} has no mask: expected "
            f"{root / part / MASKS / lacking[0]}.png{others(lacking)}"
        )
    if lacking := sorted(set(masks) - set(images)):
        raise DataError(
            f"{root / masks[lacking[0]]} is a mask without an image: expected "
            f"{root / part / IMAGES / lacking[0]}.*; or remove the mask{others(lacking)}"
        )
    return [(images[stem], masks[stem]) for stem in sorted(images)]


def _files(root: Path, part: str, kind: str) -> dict[str, str]:
    """Files of a folder by their names without ending; hidden ones are left out."""
    folder = root / part / kind
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: {EXPECTED}")
    with read_errors(folder):
        names = sorted(e.name for e in os.scandir(folder) if not e.name.startswith("."))
    names = [name for name in names if name.lower() not in STRAY]
    for name in names:
        if (folder / name).is_dir():
            raise DataError(f"{folder} has a folder {name} in it: files must be directly in it")
    found = name_stems(folder, names, lambda name: Path(name).stem)
    return {stem: Path(part, kind, name).as_posix() for stem, name in found.items()}


def _splits(parts: dict[str, list[tuple[str, str]]], whole: bool) -> dict[str, torch.Tensor]:
    """The places of each split among all pairs."""
    if "" not in parts:
        lengths = [len(pairs) for pairs in parts.values()]
        return dict(zip(parts, torch.arange(sum(lengths)).split(lengths), strict=True))
    count = len(parts[""])
    if whole:
        return {TRAIN: torch.arange(0), TEST: torch.arange(count)}
    return hold_out(count, "there is a single image with its mask")


def _check_kind(source: Encoded, of_masks: Sequence[Header]) -> None:
    """Raise DataError if a mask has 16 bits or colours, by its header."""
    for mask, header in zip(source.masks, of_masks, strict=True):
        if header.mode[:1] in ("I", "F") or header.mode.endswith(";16"):
            bits = 16 if "16" in header.mode else 32
            raise DataError(
                f"{mask} has {bits} bits per pixel: masks have 8, grey or of palette colours; save "
                "it with numpy's uint8"
            )
        if header.mode not in ("P", "L", "1"):
            raise DataError(
                f"{mask} has colours (mode {header.mode}): masks hold numbers of classes, grey or "
                "of a palette; give each colour its number"
            )


def _check_values(source: Encoded, found: np.ndarray, classes: MaskClasses, listed: Path) -> None:
    """Raise DataError if a mask has a value that no class has.

    Args:
        source: The files.
        found: How many pixels of each value every mask has, ``(count, 256)``.
        classes: What values stand for.
        listed: The file that says so.
    """
    unknown = (found > 0) & (classes.numbers < 0)
    if unknown.any():
        place = int(unknown.any(1).argmax())
        value = int(unknown[place].argmax())
        raise DataError(
            f"{source.masks[place]} has the value {value} ({found[place, value]:,} pixels), which "
            f"{listed} does not list: it has {len(classes.labels)} classes. Add it there, as a "
            f"class or as '{value}: void'"
        )


def _check_learned(found: np.ndarray, classes: MaskClasses, root: Path, whole: bool) -> None:
    """Raise DataError if there is nothing to learn from masks, or to test on.

    Args:
        found: How many pixels of each value each of them has, ``(count, 256)``.
        classes: What values stand for.
        root: The folder.
        whole: Whether they are all there are, and nothing is to be learned.
    """
    which = "masks" if whole else "training masks"
    there = {int(each) for each in classes.numbers[found.any(0)]} - {VOID}
    if not there:
        raise DataError(
            f"all pixels of the {which} in {root} are void: there is nothing to learn."
            f"{_where_255(found)}"
        )
    if len(there) == 1 and not whole:
        raise DataError(
            f"all pixels of the {which} in {root} are {classes.labels[there.pop()]} or void: at "
            f"least two classes are needed.{_where_255(found)}"
        )


def _where_255(found: np.ndarray) -> str:
    """What to do where masks have the values 0 and 255, as black and white are stored."""
    if set(np.flatnonzero(found.any(0)).tolist()) <= {0, VOID} and found[:, VOID].any():
        return (
            f" The value {VOID} means void: where it stands for a class, write 1 in its place, in "
            "Python: Image.fromarray((np.array(Image.open(path)) > 0).astype('uint8')).save(path)"
        )
    return ""


def _colors(
    source: Encoded, of_masks: Sequence[Header], values: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """The colours that values have in the first palette, if it tells them apart, or in `palette`.

    Programs that know no colours write a palette of greys, 0 beside 1 beside 2.
    """
    own: list[tuple[int, int, int]] = []
    for mask, header in zip(source.masks, of_masks, strict=True):
        if header.mode == "P":
            with decode.open_image(Path(mask)) as file:
                found = decode.identify_image(file, mask).getpalette() or []
            own = [(found[k], found[k + 1], found[k + 2]) for k in range(0, len(found) - 2, 3)]
            break
    usual = palette(256)
    given = tuple((*own, *usual[len(own) :])[value] for value in values)
    apart = min(
        max(abs(x - y) for x, y in zip(a, b, strict=True)) for a, b in combinations(given, 2)
    )
    return given if apart >= _APART else tuple(usual[value] for value in values)


OWN = UserData(load, EXPECTED)
"""A user's folder of images and masks."""
