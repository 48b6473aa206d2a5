"""How often each word or character occurs in a text that does not fit in memory."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from equilibria.zoo.io.vocabulary import UNKNOWN, Unit, Vocabulary, most_frequent, split_words

LONGEST = 256
"""Characters of the longest word; a longer one is read as ``<unk>``."""

_IN_MEMORY = 1 << 19
_CODE_POINTS = 0x110000


def words(texts: Iterable[str]) -> Iterator[list[str]]:
    """The words of a text that comes in parts, wherever the parts end.

    A word longer than `LONGEST` characters becomes ``<unk>``, so that a file without any white
    space stays as cheap as another.
    """
    begun = ""
    for part in texts:
        text = begun + part
        begun = ""
        found = split_words(text)
        if found and not text[-1].isspace():
            begun = found.pop()[: LONGEST + 1]  # enough to know that it is too long
        if found:
            yield _shortened(found)
    if begun:
        yield _shortened([begun])


def _shortened(found: list[str]) -> list[str]:
    if max(map(len, found)) <= LONGEST:
        return found
    return [word if len(word) <= LONGEST else UNKNOWN for word in found]


def codes(text: str) -> np.ndarray:
    """The code points of a text, uint32, (characters,)."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def count(
    texts: Iterable[str], unit: Unit, scratch: Path, *, min_count: int, max_size: int | None
) -> Vocabulary:
    """The vocabulary of a text that comes in parts, exact, from one pass; see `most_frequent`.

    Counts of words go to sorted files in the folder `scratch` whenever there are too many for the
    memory, and are merged at the end.
    """
    if unit == "characters":
        found = _count_characters(texts)
        total = sum(n for _, n in found)
        return most_frequent(found, unit, total=total, min_count=min_count, max_size=max_size)
    total, runs, counts = 0, [], Counter[str]()
    for part in words(texts):
        total += len(part)
        counts.update(part)
        if len(counts) > _IN_MEMORY:
            runs.append(_write_run(counts, scratch / f"counts-{len(runs)}.txt"))
            counts.clear()
    limits = {"total": total, "min_count": min_count, "max_size": max_size}
    if not runs:
        return most_frequent(counts.items(), unit, **limits)
    runs.append(_write_run(counts, scratch / f"counts-{len(runs)}.txt"))
    counts.clear()
    vocabulary = most_frequent(_merged(runs), unit, **limits)
    for run in runs:
        run.unlink()
    return vocabulary


def _count_characters(texts: Iterable[str]) -> list[tuple[str, int]]:
    total = np.zeros(_CODE_POINTS, dtype=np.int64)
    for text in texts:
        found = np.bincount(codes(text))
        total[: len(found)] += found
    return [(chr(code), int(total[code])) for code in total.nonzero()[0]]


def _write_run(counts: Counter[str], path: Path) -> Path:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\t{counts[word]}\n" for word in sorted(counts))
    return path


def _entries(file: TextIO) -> Iterator[tuple[str, int]]:
    for line in file:
        word, _, number = line.rpartition("\t")
        yield word, int(number)


def _merged(runs: list[Path]) -> Iterator[tuple[str, int]]:
    """Each word of some sorted runs, once, with the sum of its counts."""
    files = [run.open(encoding="utf-8", newline="\n") for run in runs]
    try:
        merged = heapq.merge(*map(_entries, files), key=itemgetter(0))
        for word, group in itertools.groupby(merged, key=itemgetter(0)):
            yield word, sum(number for _, number in group)
    finally:
        for file in files:
            file.close()


def table(vocabulary: Vocabulary, dtype: np.dtype[Any]) -> np.ndarray:
    """The number of each code point in a vocabulary of characters, (1,114,112,)."""
    numbers = np.full(_CODE_POINTS, vocabulary.unknown, dtype)
    for number, token in enumerate(vocabulary.tokens):
        if token != UNKNOWN:
            numbers[ord(token)] = number
    return numbers
