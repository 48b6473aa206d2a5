"""Spoken commands of one second: Speech Commands 0.01 (Warden 2018) as Google-12 and Google-30."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, read_errors, track
from equilibria.zoo.io import archive, remote, sound
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.io.sequences import Sequences, SequenceSet
from equilibria.zoo.io.sound import CHANNELS, RATE, resample, second

COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
"""The words that are classes of Google-12, before silence and unknown words."""

WORDS = tuple(
    sorted(
        (
            *COMMANDS,
            *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
            *("bed", "bird", "cat", "dog", "happy", "house", "marvin", "sheila", "tree", "wow"),
        )
    )
)
"""The classes of Google-30."""

SPLITS = ("train", "valid", "test")
EXTRA = 10
"""Silence and unknown words of Google-12, each in percent of the commands of a split."""

SHARES = (80, 90, 100)
"""Percent of each noise at which what is silence in `SPLITS` ends, so that no two share any."""

_NOISE = "_background_noise_"
_LISTS = {"valid": "validation_list.txt", "test": "testing_list.txt"}
_ARCHIVE = "speech_commands_v0.01.tar.gz"
_SILENCE = len(WORDS)  # the class of silence among the features

# A part of the name of the file in the cache: other features must not meet these.
_FORMAT = 1

# The archive unpacks to 2.1 GB.
_LARGEST = 1 << 32
_BATCH = 256


def read(files: Files, *, commands: bool) -> SequenceSet:
    """Log-mel features ``(count, 99, 32)`` of utterances of one second, not standardised.

    The archive's own lists say which utterances validate and test: no speaker is on two sides.
    Google-12 has all ten commands, and in each split a tenth as many pieces of silence and as many
    of the other twenty words (22,246, 3,093 and 3,081 in all). Those words are chosen by the
    SHA-1 of their file's name; silence is cut from the noises at random, at a volume from 0 to 1,
    from another stretch of time in each split (`SHARES`). Both choices are ours, and the same on
    every machine. A shorter utterance has zeros before it, as in the features of Kusupati et al.
    2018.

    `groups` are the speakers, and of silence, its noise. Features are made once, and kept in the
    user's cache.

    Args:
        files: The archive, or what it unpacks to.
        commands: Whether the classes are those of Google-12, rather than the thirty words.

    Raises:
        DataError: If a file is damaged, or a word or the noise is missing.
    """
    path, root = files.paths[0], files.root
    found = remote.cache_tensors(
        f"sequences/speech-commands-{_FORMAT}-{files.key(_names)}",
        lambda: _features(_folder(root) if root else archive.read_tar(path, _wanted, _LARGEST)),
    )
    select = _google12 if commands else _google30
    labels = (*COMMANDS, "silence", "unknown") if commands else WORDS
    splits = {}
    for number, split in enumerate(SPLITS):
        index, targets = select(found, found["split"] == number)
        splits[split] = Sequences(found["x"][index], targets, groups=found["speaker"][index])
    return SequenceSet.of(files, splits, labels=labels, channels=CHANNELS)


def which_set(name: str, valid: float = 10.0, test: float = 10.0) -> str:
    """The split of an utterance by the hash of its speaker.

        p = (SHA1(speaker) mod 2^27) 100 / (2^27 - 1),  "valid" if p < v, "test" if p < v + t

    The archive's lists were made by it; it serves where they are missing.

    Args:
        name: Of the file: the speaker, ``_nohash_`` and a number.
        valid: v, percent of the speakers.
        test: t, percent of the speakers.

    papers: Warden 2018, section 7.
    """
    speaker = int(hashlib.sha1(_speaker(name).encode(), usedforsecurity=False).hexdigest(), 16)
    place = speaker % 2**27 * 100 / (2**27 - 1)
    return "valid" if place < valid else "test" if place < valid + test else "train"


# --- which of the features -----------------------------------------------------------------------


def _google30(found: dict[str, Tensor], there: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and classes of the words of a split."""
    index = (there & (found["word"] < _SILENCE)).nonzero()[:, 0]
    return index, found["word"][index]


def _google12(found: dict[str, Tensor], there: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and classes of the commands, the silence and the unknown words of a split."""
    new = torch.full((len(WORDS) + 1,), len(COMMANDS) + 1)
    new[[WORDS.index(command) for command in COMMANDS]] = torch.arange(len(COMMANDS))
    new[_SILENCE] = len(COMMANDS)
    targets = new[found["word"]]
    known = there & (targets <= len(COMMANDS))
    others = (there & ~known).nonzero()[:, 0]
    extra = _extra(int((known & (found["word"] < _SILENCE)).sum()))
    others = others[found["rank"][others].argsort()[:extra]]
    index = torch.cat([known.nonzero()[:, 0], others])
    return index, targets[index]


def _extra(commands: int) -> int:
    return math.ceil(commands * EXTRA / 100)


# --- features of all utterances ------------------------------------------------------------------


def _features(files: Iterable[tuple[str, bytes]]) -> dict[str, Tensor]:
    """Features of all utterances and of silence, and what they are."""
    names: list[str] = []
    lists: dict[str, str] = {}
    noises: dict[str, Tensor] = {}

    def waves() -> Iterator[Tensor]:
        for name, content in files:
            folder, _, file = name.rpartition("/")
            if name in _LISTS.values():
                lists[name] = content.decode("utf-8", "replace")
                continue
            where = f"{name} of Speech Commands"
            wave = resample(*sound.decode(content, where), RATE, where)
            if folder == _NOISE:
                noises[Path(file).stem] = wave
            else:
                names.append(name)
                yield second(wave)

    parts = list(_log_mels(track(waves(), None, "Computing features of utterances once")))
    words = [name.partition("/")[0] for name in names]
    if missing := [word for word in WORDS if word not in set(words)] or [_NOISE] * (not noises):
        raise DataError(f"Speech Commands has no {missing[0]}/*.wav: it is incomplete")
    listed = {name: split for split, file in _LISTS.items() for name in lists.get(file, "").split()}
    whole = len(lists) == len(_LISTS)
    splits = [listed.get(name, "train") if whole else which_set(name) for name in names]
    speakers = [_speaker(name) for name in names]
    for number, split in enumerate(SPLITS):
        each = zip(words, splits, strict=True)
        count = _extra(sum(word in COMMANDS and found == split for word, found in each))
        if not count:
            raise DataError(f"Speech Commands has no command to {split} on: it is incomplete")
        cut, of = _silence(noises, count, number)
        parts += _log_mels(iter(cut))
        words += [_NOISE] * count
        splits += [split] * count
        speakers += [f"{_NOISE}/{noise}/{split}" for noise in of]
    known = {speaker: number for number, speaker in enumerate(sorted(set(speakers)))}
    hashes = [hashlib.sha1(name.encode(), usedforsecurity=False).digest() for name in names]
    rank = torch.zeros(len(words), dtype=torch.int64)  # silence is not chosen from
    rank[sorted(range(len(names)), key=hashes.__getitem__)] = torch.arange(len(names))
    numbers = {word: number for number, word in enumerate((*WORDS, _NOISE))}
    return {
        "x": torch.cat(parts),
        "word": torch.tensor([numbers[word] for word in words]),
        "split": torch.tensor([SPLITS.index(split) for split in splits], dtype=torch.uint8),
        "speaker": torch.tensor([known[speaker] for speaker in speakers]),
        "rank": rank,
    }


def _log_mels(waves: Iterator[Tensor]) -> Iterator[Tensor]:
    """Features of recordings of equal length, many at a time."""
    while batch := list(islice(waves, _BATCH)):
        yield sound.log_mel(torch.stack(batch))


def _silence(noises: dict[str, Tensor], count: int, split: int) -> tuple[list[Tensor], list[str]]:
    """Seconds of the noises, from a split's stretch of each, and from which noise they are."""
    generator = torch.Generator().manual_seed(split)
    names = sorted(noises)
    cut, of = [], []
    for number in range(count):
        name = names[number % len(names)]
        ends = [len(noises[name]) * share // 100 for share in (0, *SHARES)]
        stretch = noises[name][ends[split] : ends[split + 1]]
        if (room := len(stretch) - sound.RATE) < 0:
            raise DataError(f"{_NOISE}/{name}.wav is too short: a tenth has to be a second")
        start = int(torch.randint(room + 1, (), generator=generator))
        volume = torch.rand((), generator=generator)
        cut.append(stretch[start : start + sound.RATE] * volume)
        of.append(name)
    return cut, of


def _speaker(name: str) -> str:
    return name.rpartition("/")[2].partition("_nohash_")[0]


# --- files ---------------------------------------------------------------------------------------


def _wanted(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return name in _LISTS.values() or (folder in (*WORDS, _NOISE) and file.endswith(".wav"))


def _names(root: Path) -> list[str]:
    with read_errors(root):
        below = [*root.glob("*.txt"), *root.glob("*/*.wav")]
    names = (path.relative_to(root).as_posix() for path in below)
    return sorted(filter(_wanted, names))


def _folder(root: Path) -> Iterator[tuple[str, bytes]]:
    """The files of the unpacked archive."""
    for name in _names(root):
        with read_errors(root / name):
            yield name, (root / name).read_bytes()


# --- entries -------------------------------------------------------------------------------------

_REMOTE = Remote(
    files=(_ARCHIVE,),
    addresses=(
        "http://download.tensorflow.org/data/",
        "https://storage.googleapis.com/download.tensorflow.org/data/",
    ),
    # torchaudio, `datasets/speechcommands.py`.
    checksums={_ARCHIVE: "sha256:743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d"},
    license="CC BY 4.0",
    size="1.5 GB",
    # One archive for both, wherever it was downloaded first.
    inside=("google12", "google30", "."),
)
_UNPACKED = _REMOTE.as_folder(
    tuple(f"{word}/" for word in (*WORDS, _NOISE)),
    *("speech_commands_v0.01", "SpeechCommands/speech_commands_v0.01", "google12", "google30"),
    ".",
    checksums={},
)


def _entry(name: str, title: str, *, commands: bool) -> Entry:
    read_ = partial(read, commands=commands)
    return Entry(name=name, title=title, read=read_, remotes=(_REMOTE, _UNPACKED))


GOOGLE12 = _entry("google12", "Google-12", commands=True)
GOOGLE30 = _entry("google30", "Google-30", commands=False)
