"""A folder of images or recordings: which file has which class, and which part it belongs to."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from equilibria.run.data.storage import DataError, check_name, read_errors

TRAIN, TEST = "train", "test"
VALID = ("val", "valid", "validation")

STRAY = {"thumbs.db", "desktop.ini", "__macosx"}
"""Files that operating systems add by themselves, in small letters."""

# Of the choice of test files: the same names are the same choice on every machine.
_SEED = 0
_TEST_SHARE = 0.1

EXPECTED = (
    "expected FOLDER/CLASS/FILE with at least two classes, or FOLDER/train/CLASS/FILE and "
    "FOLDER/test/CLASS/FILE"
)

MASKED = {"images", "masks"}
"""Folders of a data set for segmentation, which are no classes."""

_Part = TypeVar("_Part")

Group = dict[str, list[str]]
"""Names of the files of each class, below the root, both sorted."""


@dataclass(frozen=True, kw_only=True)
class FolderLayout:
    """The files of a folder.

    Attributes:
        root: The folder.
        labels: Names of the classes, sorted.
        names: For "train", "test" and sometimes "valid", the files below the root. The first of
            each class come first, then the second of each, and so on.
        targets: The class of each, a number below the count of `labels`.
    """

    root: Path
    labels: tuple[str, ...]
    names: dict[str, list[str]]
    targets: dict[str, list[int]]


def read(root: Path, *, whole: bool = False, share: float = _TEST_SHARE) -> FolderLayout:
    """Find the files of a folder, by the names of its folders alone.

    Where there is a folder ``train`` with class folders in it, ``test`` has the test files, and
    ``val``, ``valid`` or ``validation`` those to validate on; without ``test``, they are the test
    files. Otherwise the class folders are in `root`, and a `share` of each class, at least one
    file, is the test part: chosen by a fixed seed, so that the same names are always the same
    parts. Hidden files are left out.

    Args:
        root: The folder.
        whole: Whether class folders in `root`, one or more, are all the test part; there is then
            nothing to train on.
        share: The part of each class that is held out where the folder does not say.

    Raises:
        DataError: If that is not what the folder is; the message names what is wrong.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: {EXPECTED}")
    if set(_folders(root)) <= {TRAIN, TEST, *VALID} and not _folders(root / TRAIN):
        raise DataError(f"{root} has no class folders: {EXPECTED}")
    if _folders(root / TRAIN):
        groups = _find_parts(root)
    else:
        groups = {TRAIN: {}, TEST: _group(root, "")} if whole else _divide_classes(root, share)
    labels = tuple(groups[TRAIN] or groups[TEST])
    if set(labels) == MASKED:
        raise DataError(
            f"{root} has images and their masks, the data of the recipe segment-folder, and not a "
            f"folder for each class: {EXPECTED}"
        )
    if len(labels) == 1 and not whole:
        raise DataError(
            f"{root} has a single class, {labels[0]}: there is nothing to classify. {EXPECTED}"
        )
    number = {label: place for place, label in enumerate(labels)}
    interleaved = {part: list(_interleave(group)) for part, group in groups.items()}
    return FolderLayout(
        root=root,
        labels=labels,
        names={part: [name for name, _ in each] for part, each in interleaved.items()},
        targets={part: [number[label] for _, label in each] for part, each in interleaved.items()},
    )


def name_parts(root: Path, has_part: Callable[[str], bool], what: str) -> dict[str, str]:
    """The folders of "train", "test" and perhaps "valid" in a folder that has ``train``.

    Args:
        root: The folder.
        has_part: Whether it has a part, by the name of its folder.
        what: What to do where there is nothing to test on: "put ...".

    Raises:
        DataError: If there are two folders to validate on, or nothing to test on.
    """
    valid = [name for name in VALID if has_part(name)]
    if len(valid) > 1:
        raise DataError(f"{root} has both {valid[0]} and {valid[1]}: keep only one of them")
    parts = {TRAIN: TRAIN}
    if has_part(TEST):
        parts |= {TEST: TEST} | ({"valid": valid[0]} if valid else {})
    elif valid:
        parts[TEST] = valid[0]
    else:
        raise DataError(f"{root} has a folder train but neither test nor val: {what}")
    return parts


def read_parts(
    root: Path, folder: str, read: Callable[[Path, str], _Part], advice: str, expected: str
) -> dict[str, _Part]:
    """What is in the parts of a folder that has no classes; all of it, as "", without parts.

    Args:
        root: The folder.
        folder: One that it has, or else each of its parts.
        read: Given the root and the folder of a part, returns what is in it.
        advice: As `name_parts` takes it.
        expected: What there should be, for messages.

    Raises:
        DataError: If `folder` is nowhere; or as `name_parts` and `read`.
    """
    if (root / folder).is_dir():
        return {"": read(root, "")}
    if not (root / TRAIN / folder).is_dir():
        raise DataError(f"{root} has no folder {folder}: {expected}")
    names = name_parts(root, lambda name: (root / name / folder).is_dir(), advice)
    return {part: read(root, name) for part, name in names.items()}


def hold_out(count: int, what: str) -> dict[str, torch.Tensor]:
    """Places to train on, and a tenth to test on: the same ones of each `count`.

    Args:
        count: Of the samples.
        what: There is, if it is one, for the message: "FOLDER has a single pair".

    Raises:
        DataError: If there are not two.
    """
    if count < 2:
        raise DataError(f"{what}: expected at least one for training and one for testing")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SEED))
    held = max(1, round(_TEST_SHARE * count))
    return {TRAIN: order[held:].sort().values, TEST: order[:held].sort().values}


def name_stems(folder: Path, names: Iterable[str], stem_of: Callable[[str], str]) -> dict[str, str]:
    """Names of a folder's files by their stems.

    Raises:
        DataError: If two have the same.
    """
    found: dict[str, str] = {}
    for name in names:
        if (stem := stem_of(name)) in found:
            raise DataError(f"{folder} has two files called {stem}: {found[stem]}, {name}")
        found[stem] = name
    return found


def _find_parts(root: Path) -> dict[str, Group]:
    """The parts of a folder that has ``train`` and others."""
    advice = (
        f"put test files into {root / TEST}, one folder per class; or name {root / TRAIN} itself, "
        "of which a part is then held out for testing"
    )
    parts = name_parts(root, lambda name: (root / name).is_dir(), advice)
    groups = {part: _group(root, name) for part, name in parts.items()}
    for part, group in groups.items():
        if more := sorted(set(group) - set(groups[TRAIN])):
            raise DataError(
                f"{root / parts[part]} has a class {more[0]} that {root / TRAIN} does not have, so "
                "no model can learn it"
            )
    return groups


def _divide_classes(root: Path, share: float) -> dict[str, Group]:
    """The parts of a folder of classes: of each class, a share is to test on."""
    train, test = {}, {}
    for label, names in _group(root, "").items():
        if len(names) < 2:
            raise DataError(
                f"{root / label} has a single file, {names[0]}: at least one for training and one "
                "for testing are needed"
            )
        generator = torch.Generator().manual_seed(_SEED)
        order = torch.randperm(len(names), generator=generator).tolist()
        count = max(1, round(share * len(names)))
        test[label] = [names[place] for place in sorted(order[:count])]
        train[label] = [names[place] for place in sorted(order[count:])]
    return {TRAIN: train, TEST: test}


def _group(root: Path, part: str) -> Group:
    """The files of each class folder below ``root / part``."""
    folder = root / part
    labels = _folders(folder)
    if not labels:
        raise DataError(f"{folder} has no class folders: {EXPECTED}")
    group: Group = {}
    for label in labels:
        entries = _entries(folder / label)
        if inner := [entry.name for entry in entries if _is_folder(entry)]:
            raise DataError(
                f"{folder / label} has a folder {inner[0]} in it: files must be directly in the "
                f"folder of their class. {EXPECTED}"
            )
        if not entries:
            raise DataError(f"{folder / label} has no files: add some, or remove the folder")
        prefix = f"{part}/{label}" if part else label
        group[label] = [f"{prefix}/{entry.name}" for entry in entries]
    return group


def _folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; none where it is not there."""
    return [e.name for e in _entries(folder) if _is_folder(e)] if folder.is_dir() else []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with read_errors(entry.path):  # a link may lead in a circle
        return entry.is_dir()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, sorted by name, without hidden files."""
    with read_errors(folder), os.scandir(folder) as found:
        entries = [e for e in found if not (e.name.startswith(".") or e.name.lower() in STRAY)]
    for entry in entries:
        check_name(entry.name)
    return sorted(entries, key=lambda entry: entry.name)


def _interleave(group: Group) -> Iterator[tuple[str, str]]:
    """Names with their classes: the first of each class, the second of each, ..."""
    for row in itertools.zip_longest(*group.values()):
        for label, name in zip(group, row, strict=True):
            if name is not None:
                yield name, label
