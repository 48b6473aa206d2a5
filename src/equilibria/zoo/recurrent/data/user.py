"""A user's own sequences: a folder of files, a table of files, or arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.dataset import UserData
from equilibria.run.data.storage import DataError, track
from equilibria.zoo.io import arrays, delimited, layout, selection, sound
from equilibria.zoo.io.delimited import Separator
from equilibria.zoo.io.layout import TEST, TRAIN, VALID
from equilibria.zoo.io.sequences import Sequences, SequenceSet, digest, pad_sequences
from equilibria.zoo.recurrent.data import tables
from equilibria.zoo.recurrent.data.tables import Missing, Reading

TABLE = "labels.csv"

EXPECTED = (
    f"expected FOLDER/CLASS/FILE with a sequence in each {', '.join(tables.SUFFIXES)}, the class "
    f"folders perhaps under train and test; or FOLDER/{TABLE} with the columns file and label; or "
    "FOLDER/train.npz with the arrays x and y"
)

_COLUMNS = ("file", "label", "split", "group")
_ARRAYS = ("x", "y", "lengths", "groups")


@dataclass
class _SequencePart:
    """Sequences ``(time, channels)``, the label of each, and its group where these are known."""

    sequences: list[np.ndarray]
    labels: list[str]
    groups: list[str] | None = None


class _Place(NamedTuple):
    """What is known of a file: its part, its label, and its group where these are given."""

    part: str
    label: str
    group: str | None = None


def load(
    root: str | os.PathLike[str],
    *,
    title: str | None = None,
    separator: Separator | None = None,
    missing: Missing = "error",
    channel: int | None = None,
    whole: bool = False,
) -> SequenceSet:
    """Read a folder of sequences that have a class each, in one of three forms.

    - A folder for each class, ``FOLDER/CLASS/FILE``, as for images (`layout.read`), perhaps under
      ``train``, ``test`` and ``valid``. A file is a sequence, as `tables.read` reads it.
    - A table ``labels.csv`` with the columns ``file``, a path below the folder, and ``label``,
      and perhaps ``split`` (train, valid or test) and ``group``.
    - Arrays ``train.npz`` and perhaps ``test.npz`` and ``valid.npz``: ``x``, ``(count, time,
      channels)`` or ``(count, time)``, and ``y``, whole numbers or texts, ``(count,)``; and
      perhaps ``lengths``, after which `x` is ignored, and ``groups``.

    Where there is no test part, a quarter of each class is, by whole groups where these are known;
    the same folder is always divided alike.

    Texts are in one format (`delimited.Format`), which is found from the beginnings of all, and
    named in `SequenceSet.form`. Signals are float32, or float64 if float32 would round away what a
    channel has to say, such as a time stamp of 1.7e9 seconds.

    Args:
        root: The folder.
        title: Its name in tables; None for the folder's name.
        separator: Of the columns of texts; None to find it.
        missing: What happens to a step in which a value is missing (`tables.Reading`).
        channel: Which channel of recordings is read, counted from 1; None for their mean.
        whole: Whether all sequences of a folder without parts are to test on, to evaluate a model
            that has learned from others; they are the training sequences too.

    Raises:
        DataError: If the folder is in none of these forms, or something in it does not fit; the
            message names the file and the line or place.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: {EXPECTED}")
    parts, channels, form = _read_parts(root, separator, missing, channel, whole)
    if whole and TRAIN not in parts:
        parts[TRAIN] = parts[TEST]
    labels = _sort_names(parts[TRAIN].labels)
    _check_labels(parts, labels, root)
    groups = _sort_names([g for part in parts.values() for g in part.groups or ()])
    wide = arrays.coarse([each for part in parts.values() for each in part.sequences])
    dtype = torch.float64 if wide.any() else torch.float32
    splits = {name: _sequences(part, labels, groups, dtype) for name, part in parts.items()}
    if TEST not in splits:
        every = splits[TRAIN]
        held = torch.ones(len(every), dtype=torch.bool)
        if not whole:
            held = selection.hold_out_groups(every.targets, every.groups, labels, root)
            splits[TRAIN] = every.select((~held).nonzero()[:, 0])
        splits[TEST] = every.select(held.nonzero()[:, 0])
    name = str(root.resolve())
    return SequenceSet(
        name=name,
        title=title or root.resolve().name,
        train=splits[TRAIN],
        test=splits[TEST],
        valid=splits.get("valid"),
        labels=tuple(labels),
        channels=channels,
        source=name,
        checksum=digest(*splits.values()),
        form=form,
    )


def _read_parts(
    root: Path, separator: Separator | None, missing: Missing, channel: int | None, whole: bool
) -> tuple[dict[str, _SequencePart], tuple[str, ...], str]:
    """The parts of a set, what channels are called, and the format of the texts, if there are."""
    table = (root / TABLE).exists()
    if not table and any((root / f"{part}.npz").exists() for part in (TRAIN, TEST, *VALID)):
        _check_used(root, {}, separator, channel)
        return *_from_arrays(root, missing), ""
    files = _table(root) if table else _folders(root, whole)
    texts = [path for path in files if path.suffix.lower() in tables.TEXTS]
    _check_used(root, files, separator, channel)
    how = Reading(missing=missing, channel=channel)
    if texts:
        how = replace(how, form=delimited.find_format(texts, separator))
    return *_read(files, how), str(how.form) if texts else ""


def _check_used(
    root: Path, files: Iterable[Path], separator: Separator | None, channel: int | None
) -> None:
    """Raise DataError if an option is given and there is no file that it is for."""
    kinds = {path.suffix.lower() for path in files}
    for name, value, suffixes in (
        ("separator", separator, tables.TEXTS),
        ("channel", channel, sound.SUFFIXES),
    ):
        if value is not None and not kinds & {*suffixes}:
            raise DataError(
                f"{name} is {value}, and {root} has no {', '.join(suffixes)} file: leave it out"
            )


def _sequences(
    part: _SequencePart, labels: Sequence[str], groups: Sequence[str], dtype: torch.dtype
) -> Sequences:
    inputs, lengths = pad_sequences([torch.from_numpy(each).to(dtype) for each in part.sequences])
    targets = _numbers(part.labels, labels)
    return Sequences(
        inputs, targets, lengths, None if part.groups is None else _numbers(part.groups, groups)
    )


def _numbers(names: Sequence[str], known: Sequence[str]) -> Tensor:
    number = {name: place for place, name in enumerate(known)}
    return torch.tensor([number[name] for name in names])


def _sort_names(names: Sequence[str]) -> list[str]:
    """Different names, sorted as numbers where all are numbers."""
    found = set(names)
    numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in found)
    return sorted(found, key=lambda name: (float(name), name)) if numbers else sorted(found)


def _check_labels(parts: dict[str, _SequencePart], labels: list[str], root: Path) -> None:
    if len(labels) == 1:
        raise DataError(f"{root} has a single class, {labels[0]}: there is nothing to classify")
    for name, part in parts.items():
        if more := [label for label in part.labels if label not in labels]:
            raise DataError(
                f"the {name} part of {root} has a class {more[0]} that the train part does not "
                "have, so no model can learn it"
            )


# --- files of one sequence each ------------------------------------------------------------------


def _folders(root: Path, whole: bool) -> dict[Path, _Place]:
    try:
        found = layout.read(root, whole=whole, share=selection.HELD_OUT)
    except DataError as error:
        raise DataError(str(error).replace(layout.EXPECTED, EXPECTED)) from None
    return {
        root / name: _Place(part, found.labels[target])
        for part, targets in found.targets.items()
        for name, target in zip(found.names[part], targets, strict=True)
    }


def _table(root: Path) -> dict[Path, _Place]:
    path = root / TABLE
    known = {TRAIN: TRAIN, TEST: TEST, **dict.fromkeys(VALID, "valid")}
    rows = delimited.rows(path, delimited.find_names(path, "file", "label"))
    _, names = next(rows, (0, []))
    names = [name.strip() for name in names]
    if not {"file", "label"} <= set(names) <= set(_COLUMNS) or len(set(names)) != len(names):
        raise DataError(
            f"{path} has the columns {', '.join(names) or '(none)'}: expected file and label, "
            "perhaps split and group, and no other"
        )
    listed: dict[Path, _Place] = {}
    for line, cells in rows:
        cells = [cell.strip() for cell in cells]
        if len(cells) != len(names) or not all(cells):
            raise DataError(
                f"{path}, line {line}: expected a value for each of {', '.join(names)}, "
                f"found {', '.join(cells)}"
            )
        row = dict(zip(names, cells, strict=True))
        file = root / row["file"]
        part = known.get(row.get("split", TRAIN))
        if part is None:
            raise DataError(
                f"{path}, line {line}: the split is {row['split']!r}, expected train, valid or test"
            )
        if file in listed:
            raise DataError(f"{path}, line {line}: {row['file']} is listed twice")
        if not file.exists():
            raise DataError(f"{path}, line {line}: there is no file {file}")
        listed[file] = _Place(part, row["label"], row.get("group"))
    if not any(place.part == TRAIN for place in listed.values()):
        raise DataError(f"{path} lists no sequences to train on")
    return listed


def _read(
    files: dict[Path, _Place], how: Reading
) -> tuple[dict[str, _SequencePart], tuple[str, ...]]:
    """The parts of a set, whose files have the same channels, and what these are called."""
    parts: dict[str, _SequencePart] = {}
    names: dict[tuple[str, ...], Path] = {}
    longest = width = 0
    for path, place in track(files.items(), len(files), "Reading sequences"):
        each, channels = tables.read(path, how)
        width = width or each.shape[1]
        if each.shape[1] != width:
            raise DataError(
                f"{path} has {each.shape[1]} channels, and {next(iter(files))} has {width}: "
                "expected the same in all files"
            )
        if channels:
            names.setdefault(channels, path)
        if len(names) > 1:
            (one, first_path), (other, _) = names.items()
            raise DataError(
                f"{path} has the channels {', '.join(other)}, and {first_path} has "
                f"{', '.join(one)}: expected the same in the same order"
            )
        longest = max(longest, len(each))
        arrays.check_size(
            8 * len(files) * longest * width,
            f"{len(files)} sequences padded to the {longest} steps of the longest have",
        )
        part = parts.setdefault(
            place.part, _SequencePart([], [], None if place.group is None else [])
        )
        part.sequences.append(each)
        part.labels.append(place.label)
        if part.groups is not None and place.group is not None:
            part.groups.append(place.group)
    return parts, next(iter(names), _number_channels(width))


def _number_channels(count: int) -> tuple[str, ...]:
    return tuple(f"channel {number}" for number in range(1, count + 1))


# --- arrays --------------------------------------------------------------------------------------


def _from_arrays(root: Path, missing: Missing) -> tuple[dict[str, _SequencePart], tuple[str, ...]]:
    names = [name for name in (TRAIN, TEST, *VALID) if (root / f"{name}.npz").exists()]
    if names[0] != TRAIN:
        raise DataError(f"{root} has {names[0]}.npz and no train.npz: {EXPECTED}")
    if sum(name in VALID for name in names) > 1:
        raise DataError(f"{root} has both {names[-2]}.npz and {names[-1]}.npz: keep only one")
    parts: dict[str, _SequencePart] = {}
    channels = 0
    for name in names:
        path = root / f"{name}.npz"
        part = _arrays(path, missing)
        width = part.sequences[0].shape[1]
        channels = channels or width
        if width != channels:
            raise DataError(
                f"x in {path} has {width} channels, and in train.npz {channels}: expected the same"
            )
        parts["valid" if name in VALID else name] = part
    return parts, _number_channels(channels)


def _arrays(path: Path, missing: Missing) -> _SequencePart:
    found = arrays.read(path)
    if not {"x", "y"} <= set(found) <= set(_ARRAYS):
        raise DataError(
            f"{path} has the arrays {', '.join(found) or '(none)'}: expected x and y, perhaps "
            "lengths and groups, and no other"
        )
    x = found["x"]
    if x.ndim not in (2, 3) or 0 in x.shape:
        raise DataError(
            f"x in {path} has the shape {x.shape}: expected (count, time, channels) or "
            "(count, time), none of them 0"
        )
    for name in _ARRAYS[1:]:
        if name in found and found[name].shape != x.shape[:1]:
            raise DataError(
                f"{name} in {path} has the shape {found[name].shape}, and x {x.shape}: expected "
                f"({len(x)},), one for each sequence"
            )
    x = x if x.ndim == 3 else x[:, :, None]
    lengths = np.full(len(x), x.shape[1])
    if "lengths" in found:
        lengths = found["lengths"]
        lengths = arrays.whole(lengths, f"lengths in {path}")
        if lengths.min() < 1 or lengths.max() > x.shape[1]:
            raise DataError(
                f"lengths in {path} are {np.unique(lengths)}, {lengths.dtype}: expected whole "
                f"numbers from 1 to {x.shape[1]}, the steps of x"
            )
        # What comes after the end is not looked at: some fill it with NaN.
        after = np.arange(x.shape[1]) >= lengths[:, None]
        x = np.where(after[:, :, None], np.zeros((), x.dtype), x)
    x = arrays.real(x, f"x in {path}")
    return _SequencePart(
        [
            tables.fill(
                each[:length],
                missing,
                lambda *at, number=number: f"x in {path} at [{number}, {at[0]}, {at[1]}]",
            )
            for number, (each, length) in enumerate(zip(x, lengths.tolist(), strict=True))
        ],
        _texts(found["y"], f"y in {path}"),
        _texts(found["groups"], f"groups in {path}") if "groups" in found else None,
    )


def _texts(array: np.ndarray, name: str) -> list[str]:
    """Names of classes or groups, from whole numbers or texts."""
    if array.dtype.kind == "f":
        array = arrays.whole(array, name)
    if array.dtype.kind not in "biuU":
        raise DataError(f"{name} is an array of {array.dtype}: expected whole numbers or texts")
    return [str(each) for each in array.tolist()]


OWN = UserData(load, EXPECTED)
"""A user's folder of sequences."""
