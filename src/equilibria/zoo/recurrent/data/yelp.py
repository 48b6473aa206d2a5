"""Reviews of Yelp with one to five stars: Yelp-5."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, open_file, read_errors, track
from equilibria.zoo.io import archive, remote
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.io.sequences import Sequences, SequenceSet
from equilibria.zoo.io.vocabulary import END, LONGEST, UNKNOWN, build_vocabulary

WORDS = 300
"""Words of a review that are read, the first ones."""

VOCABULARY = 20_000
"""Words that have a token: the most frequent in the training reviews."""

PADDING, OTHER = 0, 1
"""Tokens after the end of a review, and of words without one."""

STARS = 5
HALF = 500_000
"""Reviews to train and to test on from the official file, as the papers have it."""

_WORD = re.compile(r"\w+(?:'\w+)*")
_LONGEST = 1 << 20  # bytes of a line, or characters of a field; reviews have at most 5,000

# A part of the name of every file in the cache: another encoding must not meet this one.
_FORMAT = 1

_JSON = "yelp_academic_dataset_review.json"
_FOLDER = "yelp_review_full_csv"

Review = tuple[int, str]
"""Stars, 1 to 5, and text."""


def read(files: Files, *, train: int | None = None, test: int | None = None) -> SequenceSet:
    """Reviews as tokens, ``(count, 300)``, with lengths; the class is the number of stars less 1.

    Words are sequences of letters, digits and apostrophes in lower case. Tokens from 2 on are the
    20,000 most frequent words of the training reviews, the most frequent first; a review without
    any word is one token `OTHER`. What is read is kept in the user's cache.

    Of Yelp's own file, the first 500,000 reviews train and the next 500,000 test, as in Kusupati
    et al. 2018, who used the first million (which half they tested on is not published). What
    Zhang et al. 2015 drew from it has halves of its own, 650,000 and 50,000 reviews with equally
    many of each class: accuracies on the two are not comparable, and the title tells them apart.

    Args:
        files: Yelp's own file, or the archive of Zhang et al.
        train: Training reviews, the first ones; None for as many as above.
        test: Reviews to test on, likewise. A million reviews take 2.4 GB of memory.

    Raises:
        DataError: If the file is damaged, or has too few reviews.
        ValueError: If a number is below 1.
    """
    counts = {"train": train, "test": test}
    if any(count is not None and count < 1 for count in counts.values()):
        raise ValueError(f"train is {train} and test {test}: expected at least 1 of each")
    (path,) = files.paths
    official = path.name == _JSON
    if official:
        counts = {split: count or HALF for split, count in counts.items()}
    key = hashlib.sha256(repr((_FORMAT, files.checksum, counts)).encode()).hexdigest()[:24]

    def reviews(split: str) -> Iterator[Review]:
        if not official:
            return islice(_rows(path, split), counts[split])
        first = 0 if split == "train" else counts["train"] or 0
        return islice(_lines(path), first, first + (counts[split] or 0))

    found = remote.cache_tensors(f"sequences/yelp-{key}", lambda: _encode(reviews, path))
    for split, count in counts.items():
        if count is not None and (there := len(found[f"{split}.stars"])) < count:
            raise DataError(f"{path} has {there:,} reviews to {split} on: expected {count:,}")
    splits = {
        split: Sequences(
            found[f"{split}.tokens"].long(),
            found[f"{split}.stars"].long() - 1,
            found[f"{split}.lengths"].long(),
        )
        for split in counts
    }
    labels = tuple(f"{stars} star{'s' * (stars > 1)}" for stars in range(1, STARS + 1))
    read_ = SequenceSet.of(files, splits, labels=labels, vocabulary=VOCABULARY + 2)
    if official:
        return replace(read_, source=str(path))
    return replace(read_, title=f"{read_.title} (Zhang et al. 2015)")


def words(text: str) -> list[str]:
    """The first 300 words of a review."""
    found = (match[0] for match in islice(_WORD.finditer(text.lower()), WORDS))
    return [word if len(word) <= LONGEST else UNKNOWN for word in found]


def _encode(reviews: Callable[[str], Iterator[Review]], path: Path) -> dict[str, Tensor]:
    """Tokens, lengths and stars of both splits: one pass for the vocabulary, one to encode."""
    training = track(reviews("train"), None, "Counting the words of Yelp reviews")
    texts = (" ".join(words(text)) + " " for _, text in training)
    with tempfile.TemporaryDirectory() as scratch:
        size = VOCABULARY + 2  # with <unk> and <eos>
        vocabulary = build_vocabulary(texts, "words", Path(scratch), min_count=1, max_size=size)
    ranked = [token for token in vocabulary.tokens if token not in (UNKNOWN, END)]
    numbers = {word: number for number, word in enumerate(ranked, OTHER + 1)}
    found = {}
    for split in ("train", "test"):
        stars: list[int] = []
        rows: list[np.ndarray] = []
        for count, text in track(reviews(split), None, f"Encoding Yelp reviews to {split} on"):
            stars.append(count)
            tokens = [numbers.get(word, OTHER) for word in words(text)] or [OTHER]
            rows.append(np.array(tokens, np.int16))  # a quarter of the size, in the cache too
        if not rows:
            raise DataError(f"{path} has no reviews to {split} on")
        padded = np.full((len(rows), WORDS), PADDING, np.int16)
        for line, row in zip(padded, rows, strict=True):
            line[: len(row)] = row
        found[f"{split}.tokens"] = torch.from_numpy(padded)
        found[f"{split}.lengths"] = torch.tensor([len(row) for row in rows], dtype=torch.int16)
        found[f"{split}.stars"] = torch.tensor(stars, dtype=torch.uint8)
    return found


def _lines(path: Path) -> Iterator[Review]:
    """The reviews of Yelp's own file, a JSON object a line."""
    with read_errors(path), open_file(path) as file:
        for number, line in enumerate(_short(file), 1):
            try:
                review = json.loads(line)
                yield _review(review["stars"], review["text"])
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise DataError(
                    f"line {number:,} of {path} is no review ({error!r}): expected a JSON object "
                    "with stars and text"
                ) from None


def _rows(path: Path, split: str) -> Iterator[Review]:
    """The reviews of a split in the archive of Zhang et al.: stars and text, separated by commas.

    A newline in a text stands there as a backslash and an n.
    """
    name = f"{_FOLDER}/{split}.csv"
    with read_errors(path, *archive.DAMAGED):
        for _, file in archive.open_tar(path, name.__eq__):
            rows = csv.reader(line.decode() for line in _short(file))
            try:
                for stars, review in rows:
                    yield _review(int(stars), review.replace("\\n", " "))
            except (ValueError, csv.Error) as error:
                raise DataError(
                    f"line {rows.line_num:,} of {name} in {path} is no review ({error}): expected "
                    "stars and text"
                ) from None
            return
    raise DataError(f"{path} does not contain {name}: it is a different file")


def _short(file: IO[bytes]) -> Iterator[bytes]:
    """Lines, of which those longer than `_LONGEST` are cut into several."""
    return iter(lambda: file.readline(_LONGEST), b"")


def _review(stars: object, text: object) -> Review:
    if not isinstance(stars, int | float) or stars not in range(1, STARS + 1):
        raise ValueError(f"it has {stars!r} stars")
    if not isinstance(text, str):
        raise TypeError("its text is not a string")
    return int(stars), text


_ZHANG = Remote(
    files=(f"{_FOLDER}.tgz",),
    # The copy of fast.ai, for which nobody published a checksum: the first download is recorded.
    addresses=("https://s3.amazonaws.com/fast-ai-nlp/",),
    license="terms of the Yelp dataset, for academic use",
    size="196 MB",
    inside=("yelp5", "."),
)
YELP5 = Entry(
    name="yelp5",
    title="Yelp-5",
    read=read,
    remotes=(
        replace(_ZHANG, files=(_JSON,), addresses=(), size=""),
        _ZHANG,
        replace(
            _ZHANG,
            files=(f"{_FOLDER}.tar.gz",),
            addresses=(),
            # torchtext, `datasets/yelpreviewfull.py`.
            checksums={f"{_FOLDER}.tar.gz": "md5:f7ddfafed1033f68ec72b9267863af6c"},
        ),
    ),
    how_to_get=(
        "Accept Yelp's terms at https://business.yelp.com/data/resources/open-dataset/, unpack the "
        f"JSON archive, and name the folder of {_JSON} with --data-dir or EQUILIBRIA_DATA; or "
        f"allow the download of {_FOLDER}.tgz (196 MB), what Zhang et al. 2015 drew from it"
    ),
)
