"""Human activity recognition by a smartphone at the waist (Anguita et al. 2013)."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, open_file, read_errors
from equilibria.zoo.io import download, remote
from equilibria.zoo.io.archive import read_members
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.io.sequences import Sequences, SequenceSet

ACTIVITIES = (
    *("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS"),
    *("SITTING", "STANDING", "LAYING"),
)
"""In the order of their numbers, which begin with 1 in the files."""

FIRST = ("SITTING", "LAYING", "WALKING_UPSTAIRS")
"""The activities of class 0 of HAR-2; the others are class 1."""

LABELS = tuple("/".join(a for a in ACTIVITIES if (a in FIRST) == first) for first in (True, False))
"""What the classes of HAR-2 are called."""

SIGNALS = ("body_acc", "body_gyro", "total_acc")
CHANNELS = tuple(f"{signal}_{axis}" for signal in SIGNALS for axis in "xyz")
STEPS, STRIDE = 128, 64
"""Samples in a window, 2.56 s at 50 Hz, and from the start of one to that of the next."""

COUNTS = {"train": 7_352, "test": 2_947}
"""Windows in the official files."""

TESTED = (2, 4, 9, 10, 12, 13, 18, 20, 24)
"""The volunteers of the official test split."""

_RATE = 50.0

# A part of the name of every file in the cache: another processing must not meet this one.
_FORMAT = 1

_FOLDER = "UCI HAR Dataset"
_NAMES = {
    split: (
        f"{split}/y_{split}.txt",
        f"{split}/subject_{split}.txt",
        *(f"{split}/Inertial Signals/{channel}_{split}.txt" for channel in CHANNELS),
    )
    for split in COUNTS
}

# Bytes that one of the text files has at most: the largest has 15 MB.
_LARGEST = 1 << 26


def read(files: Files, *, binary: bool) -> SequenceSet:
    """Windows of 128 steps and nine channels, with the volunteer of each in `groups`.

    Accelerations are in g and angular velocities in rad/s, as published: not standardised. What
    is read is kept in the user's cache, under the checksums of the files.

    Args:
        files: The archive, the files that are in it, or raw signals in an .npz file.
        binary: Whether the classes are those of HAR-2, rather than the six activities.

    Raises:
        DataError: If a file is damaged or another one.
    """
    paths = files.paths
    key = hashlib.sha256("".join(map(download.digest, paths)).encode()).hexdigest()[:24]
    make = partial(_parse, paths) if files.remote.copy is None else partial(_window, paths[0])
    found = remote.cache_tensors(f"sequences/har-{_FORMAT}-{key}", make)
    half = torch.tensor([int(activity not in FIRST) for activity in ACTIVITIES])
    splits = {}
    for split in COUNTS:
        inputs, activity, groups = (found[f"{split}.{part}"] for part in ("x", "y", "volunteer"))
        targets = half[activity] if binary else activity
        splits[split] = Sequences(inputs, targets, groups=groups)
    return SequenceSet.of(files, splits, labels=LABELS if binary else ACTIVITIES, channels=CHANNELS)


# --- the official windows ------------------------------------------------------------------------


def _parse(paths: tuple[Path, ...]) -> dict[str, Tensor]:
    """The windows of the archive, or of the files that were in it."""
    names = [name for each in _NAMES.values() for name in each]
    root = paths[0] if paths[0].suffix == ".zip" else paths[0].parents[1]
    found = {
        name: _numbers(content, f"{name} in {root}")
        for name, content in read_members(paths, names, _LARGEST + 1)
    }
    tensors = {}
    for split, count in COUNTS.items():
        for name in _NAMES[split]:
            rows, each = found[name].shape
            steps = STEPS if "Inertial" in name else 1
            if (rows, each) != (count, steps):
                raise DataError(
                    f"{name} has {rows} rows of {each} numbers: expected {count} of {steps}"
                )
        y, volunteer, *signals = (found[name] for name in _NAMES[split])
        if not ((y >= 1) & (y <= len(ACTIVITIES))).all():
            raise DataError(f"{_NAMES[split][0]} has another activity than 1 to {len(ACTIVITIES)}")
        x = np.stack(signals, axis=2).astype(np.float32)
        tensors |= _pack(split, x, y[:, 0] - 1, volunteer[:, 0])
    return tensors


def _numbers(content: bytes, name: str) -> np.ndarray:
    """The numbers of a text, ``(rows, numbers in a row)``."""
    rows = content.rstrip().count(b"\n") + 1
    try:
        if len(content) > _LARGEST:
            raise ValueError(f"more than {_LARGEST:,} bytes")
        numbers = np.array(content.split(), np.float64)
        if len(numbers) % rows or not np.isfinite(numbers).all():
            raise ValueError(f"{len(numbers)} numbers in {rows} lines, or one that is not finite")
    except ValueError as error:
        raise DataError(f"{name} is damaged or the wrong file ({error})") from None
    return numbers.reshape(rows, -1)


# --- windows from the raw signals ----------------------------------------------------------------


def _window(path: Path) -> dict[str, Tensor]:
    """Windows cut from the raw signals, by the procedure in the official README.

    A median filter over three samples and a Butterworth filter at 20 Hz remove noise, one at
    0.3 Hz separates gravity from the body's acceleration, and each stretch of one activity is cut
    into windows of 128 samples that overlap by half. They are close to the official ones but not
    the same, and a little more: the stretches of standing, sitting and lying are longer here.
    """
    with (
        read_errors(path, zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError),
        open_file(path) as file,
        np.load(file, allow_pickle=False) as raw,
    ):
        acc, gyro, trials, labels = (raw[name] for name in ("acc", "gyro", "trials", "labels"))
    parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {s: [] for s in COUNTS}
    for experiment, volunteer, start, stop in trials:
        signal = _filter_signals(acc[start:stop], gyro[start:stop])
        stretches = labels[(labels[:, 0] == experiment) & (labels[:, 2] <= len(ACTIVITIES))]
        # First and last sample count from 1.
        begins = [
            (first, activity - 1)
            for _, _, activity, begin, end in stretches
            for first in range(begin - 1, end - STEPS + 1, STRIDE)
        ]
        first, y = np.array(begins, np.int64).reshape(-1, 2).T
        x = signal[first[:, None] + np.arange(STEPS)]
        parts["test" if volunteer in TESTED else "train"].append((x, y, np.full(len(y), volunteer)))
    tensors = {}
    for split, each in parts.items():
        x, y, volunteer = (np.concatenate([trial[part] for trial in each]) for part in range(3))
        tensors |= _pack(split, x, y, volunteer)
    return tensors


def _filter_signals(acc: np.ndarray, gyro: np.ndarray) -> np.ndarray:
    """All nine channels of a trial, ``(samples, 9)``, float32."""
    from scipy import ndimage

    raw = np.concatenate([acc, gyro], axis=1).astype(np.float64)
    calm = ndimage.median_filter(raw, size=(3, 1), mode="constant")
    calm = _low_pass(calm, 20.0)
    total = calm[:, :3]
    body = total - _low_pass(total, 0.3)
    return np.concatenate([body, calm[:, 3:], total], axis=1).astype(np.float32)


def _low_pass(signals: np.ndarray, cutoff: float) -> np.ndarray:
    """A Butterworth filter of third order, forwards and backwards along the first axis."""
    # Imported here: it takes half a second, and what it makes is kept.
    from scipy import signal

    b, a = np.asarray(signal.butter(3, cutoff / (_RATE / 2)))
    return signal.filtfilt(b, a, signals, axis=0)


def _pack(split: str, x: np.ndarray, y: np.ndarray, volunteer: np.ndarray) -> dict[str, Tensor]:
    return {
        f"{split}.x": torch.from_numpy(x).contiguous(),
        f"{split}.y": torch.from_numpy(y.astype(np.int64)),
        f"{split}.volunteer": torch.from_numpy(volunteer.astype(np.int64)),
    }


# --- entries -------------------------------------------------------------------------------------

_PLACES = ("har", "har6", "har2", ".")
_ARCHIVE = Remote(
    files=(f"{_FOLDER}.zip",),
    addresses=("https://archive.ics.uci.edu/ml/machine-learning-databases/00240/",),
    # MVDA.jl, `src/data/HAR.jl`.
    checksums={
        f"{_FOLDER}.zip": "sha256:2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0"
    },
    license="CC BY 4.0 by its page; no commercial use by its README",
    size="61 MB",
    inside=_PLACES,
)
_COPY = Remote(
    # The raw signals of the data set's version 2.1 (Reyes-Ortiz et al. 2016) as arrays: `acc` and
    # `gyro` (samples, 3), `trials` (experiment, volunteer, start, stop) and `labels` (experiment,
    # volunteer, activity, first sample, last sample), from the files in the folder
    # Data/Original-Data/HAPT-Dataset/Raw-Data of
    # github.com/anas337/Human-Activity-Recognition-Using-Smartphones at df9773951f72.
    files=("hapt_raw.npz",),
    checksums={
        "hapt_raw.npz": "sha256:322c2f3051c73ef104aa40ac370bb6ed1afaaac123a8fe003aa6d077fef0d97a"
    },
    license=_ARCHIVE.license,
    inside=_PLACES,
    copy="rebuilt",
)


def _entry(name: str, title: str, *, binary: bool) -> Entry:
    names = tuple(name for each in _NAMES.values() for name in each)
    unpacked = _ARCHIVE.as_folder(
        names, *(f"{place}/{_FOLDER}" for place in _PLACES), *_PLACES, checksums={}
    )
    return Entry(
        name=name,
        title=title,
        read=partial(read, binary=binary),
        remotes=(_ARCHIVE, unpacked, _COPY),
    )


HAR6 = _entry("har6", "HAR-6", binary=False)
HAR2 = _entry("har2", "HAR-2", binary=True)
