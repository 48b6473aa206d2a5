"""Daily and sports activities by five sensors on the body (Altun, Barshan and Tunçel 2010)."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, track
from equilibria.zoo.io import remote
from equilibria.zoo.io.archive import read_members
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.io.sequences import Sequences, SequenceSet

ACTIVITIES = (
    "sitting",
    "standing",
    "lying on the back",
    "lying on the right side",
    "ascending stairs",
    "descending stairs",
    "standing in an elevator",
    "moving in an elevator",
    "walking in a parking lot",
    "walking on a flat treadmill",
    "walking on an inclined treadmill",
    "running on a treadmill",
    "exercising on a stepper",
    "exercising on a cross trainer",
    "cycling in horizontal position",
    "cycling in vertical position",
    "rowing",
    "jumping",
    "playing basketball",
)
"""In the order of their numbers, a01 to a19."""

UNITS = ("torso", "right arm", "left arm", "right leg", "left leg")
SENSORS = ("acc", "gyro", "mag")
CHANNELS = tuple(f"{unit} {s}_{axis}" for unit in UNITS for s in SENSORS for axis in "xyz")

PERSONS, SEGMENTS, STEPS = 8, 60, 125
"""Segments of five seconds at 25 Hz: sixty of each person in each activity."""

TESTED = (5, 6, 7, 8)
"""The persons to test on."""

# A part of the name of the file in the cache: another layout must not meet this one.
_FORMAT = 1

# Bytes of the largest text: they have about 45,000.
_LARGEST = 1 << 20


def read(files: Files) -> SequenceSet:
    """Segments of 125 steps and 45 channels, 4,560 to train and 4,560 to test on.

    Persons 1 to 4 train and 5 to 8 test, who are the `groups`: segments of one person follow each
    other in time, so that any other halves have near copies of what is tested. The split is ours:
    the papers say only how many there are. Values are as published, not standardised. They are
    parsed once, and kept in the user's cache.

    Args:
        files: The archive, or the folders a01 to a19 that are in it.

    Raises:
        DataError: If a file is missing, damaged or another one.
    """
    names, root = _names(), files.root
    paths = files.paths if root is None else [root / name for name in names]
    found = remote.cache_tensors(
        f"sequences/dsa-{_FORMAT}-{files.key(lambda _: names)}",
        lambda: _parse(read_members(paths, names, _LARGEST)),
    )
    # Activity, person, segment.
    shape = found["x"].shape[:3]
    activity, person, _ = torch.cartesian_prod(*map(torch.arange, shape)).T
    tested = torch.isin(person + 1, torch.tensor(TESTED))
    x = found["x"].flatten(0, 2)
    splits = {
        split: Sequences(x[there], activity[there], groups=person[there] + 1)
        for split, there in (("train", ~tested), ("test", tested))
    }
    return SequenceSet.of(files, splits, labels=ACTIVITIES, channels=CHANNELS)


def _names() -> list[str]:
    """Names of all files, by activity, person and segment."""
    return [
        f"a{activity:02}/p{person}/s{segment:02}.txt"
        for activity in range(1, len(ACTIVITIES) + 1)
        for person in range(1, PERSONS + 1)
        for segment in range(1, SEGMENTS + 1)
    ]


def _parse(files: Iterable[tuple[str, bytes]]) -> dict[str, Tensor]:
    """Values by activity, person, segment, step and channel."""
    count = len(ACTIVITIES) * PERSONS * SEGMENTS
    values = np.empty((count, STEPS, len(CHANNELS)), np.float32)
    for place, (name, text) in enumerate(track(files, count, "Reading DSA-19 once")):
        values[place] = _numbers(text, name)
    x = torch.from_numpy(values)
    return {"x": x.unflatten(0, (len(ACTIVITIES), PERSONS, SEGMENTS))}


def _numbers(text: bytes, name: str) -> np.ndarray:
    try:
        if not text.strip():  # of which NumPy only warns
            raise ValueError("it is empty")
        found = np.loadtxt(io.BytesIO(text), np.float32, comments=None, delimiter=",", ndmin=2)
    except ValueError as error:
        raise DataError(f"{name} of DSA-19 is damaged ({error})") from None
    if found.shape != (STEPS, len(CHANNELS)) or not np.isfinite(found).all():
        raise DataError(
            f"{name} of DSA-19 has {found.shape[0]} lines of {found.shape[1]} numbers, or one that "
            f"is not finite: expected {STEPS} of {len(CHANNELS)}"
        )
    return found


_REMOTE = Remote(
    files=("daily+and+sports+activities.zip",),
    addresses=("https://archive.ics.uci.edu/static/public/256/",),
    # Nobody published a checksum: the first download is recorded.
    license="CC BY 4.0",
    size="163 MB",
    inside=("dsa19", "."),
)
DSA19 = Entry(
    name="dsa19",
    title="DSA-19",
    read=read,
    remotes=(
        _REMOTE,
        _REMOTE.as_folder(
            tuple(f"a{number:02}/" for number in range(1, len(ACTIVITIES) + 1)),
            *("dsa19", "dsa19/data", "daily+and+sports+activities/data", "data", "."),
            checksums={},
        ),
    ),
)
