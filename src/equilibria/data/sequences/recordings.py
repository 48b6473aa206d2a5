"""A user's folder of recordings, with one subfolder per class, as log-mel features."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from equilibria.data.errors import DataError
from equilibria.data.images import layout
from equilibria.data.progress import tracked
from equilibria.data.sequences import mel, wav
from equilibria.data.sequences.samples import Sequences, SequenceSet, digest, padded

CHANNELS = tuple(f"log-mel {number}" for number in range(1, mel.FILTERS + 1))
"""What the features are called, from low to high frequencies."""

RATES = (1_000, 768_000)
"""Lowest and highest rate of a recording, in hertz."""

MEMORY = 1 << 32
"""Bytes that the features of all recordings may take, padded to the longest."""


def read_folder(root: str | os.PathLike[str], *, title: str | None = None) -> SequenceSet:
    """Recordings as sequences of 32 log-mel features, one every 10 ms.

    `images.layout.read` defines what the folder must be: ``FOLDER/CLASS/NAME.wav``, of which a
    tenth of each class is held out for testing, or ``FOLDER/train/CLASS/NAME.wav`` with ``test``
    or ``val``. Recordings of any rate are resampled to 16 kHz; where their lengths differ, they
    are padded with zeros at the end, and all splits have lengths.

    Args:
        root: The folder.
        title: Its name in tables; None for the folder's name.

    Raises:
        DataError: If the folder has no classes, a file is no WAV file or is damaged, or the
            features would take more than `MEMORY`; the message names the file.
    """
    found = layout.read(Path(root).expanduser())
    names = [(split, name) for split, each in found.names.items() for name in each]
    features: dict[str, list[Tensor]] = {split: [] for split in found.names}
    longest, steps = "", 0
    for split, name in tracked(names, len(names), "Reading recordings"):
        wave, rate = wav.read(found.root / name)
        features[split].append(mel.log_mel(samples(wave, rate, found.root / name)))
        if (count := len(features[split][-1])) > steps:
            longest, steps = name, count
        if (size := 4 * mel.FILTERS * steps * len(names)) > MEMORY:
            raise DataError(
                f"{found.root / longest} has {steps:,} steps, and {len(names):,} recordings padded "
                f"to that length would take {size / 2**30:.1f} GiB: cut it into shorter ones"
            )
    equal = len({len(each) for split in features.values() for each in split}) == 1
    splits = {}
    for split, each in features.items():
        lengths = None if equal else torch.tensor([len(feature) for feature in each])
        inputs = padded(each)[0]
        splits[split] = Sequences(inputs, torch.tensor(found.targets[split]), lengths)
    return SequenceSet(
        name=str(root),
        title=title or found.root.resolve().name,
        train=splits[layout.TRAIN],
        test=splits[layout.TEST],
        valid=splits.get("valid"),
        labels=found.labels,
        channels=CHANNELS,
        source=str(found.root),
        checksum=digest(*splits.values()),
    )


def samples(wave: Tensor, rate: int, name: str | Path) -> Tensor:
    """A recording at 16 kHz, by a polyphase filter where it has another rate.

    Args:
        wave: The recording, ``(samples,)``.
        rate: Its samples per second.
        name: Of its file, for messages.

    Raises:
        DataError: If the rate is not within `RATES`.
    """
    if rate == mel.RATE:
        return wave
    if not RATES[0] <= rate <= RATES[1]:
        raise DataError(
            f"{name} has {rate:,} samples per second: expected {RATES[0]:,} to {RATES[1]:,}"
        )
    # Imported here: it takes a second.
    from scipy.signal import resample_poly

    common = math.gcd(rate, mel.RATE)
    found = resample_poly(wave.numpy(), mel.RATE // common, rate // common)
    return torch.from_numpy(found)


def second(wave: Tensor) -> Tensor:
    """The last second of a recording at 16 kHz, with silence before it where it is shorter."""
    return F.pad(wave[-mel.RATE :], (max(0, mel.RATE - len(wave)), 0))
