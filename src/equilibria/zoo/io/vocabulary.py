"""The words or characters of a corpus, and their numbers."""

from __future__ import annotations

import heapq
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TextIO, TypedDict

import numpy as np

from equilibria import files
from equilibria.run.data import storage
from equilibria.run.data.storage import DataError, read_errors

UNKNOWN = "<unk>"
END = "<eos>"
MOST = 1 << 20
"""Maximum size of a vocabulary."""

Unit = Literal["words", "characters"]
UNITS: tuple[Unit, ...] = ("words", "characters")


class _VocabularyContent(TypedDict):
    tokens: list[str]
    counts: list[int]
    unit: Unit


@dataclass(frozen=True)
class Vocabulary:
    """Tokens sorted by how often they occur in the training text, the most frequent first.

    By words, a text is split at white space and each newline is the token ``<eos>``; a word that
    is not in the vocabulary is ``<unk>``. By characters, each Unicode character is a token, the
    newline too, and ``<unk>`` stands for all that the training text does not have.

    Attributes:
        tokens: The tokens; a token's number is its index.
        counts: How often each occurs in the training text.
        unit: ``"words"`` or ``"characters"``.

    Raises:
        ValueError: If a token is repeated, ``<unk>`` (or, by words, ``<eos>``) is missing, or the
            numbers of tokens and counts differ.
    """

    tokens: tuple[str, ...] = field(repr=False)
    counts: tuple[int, ...] = field(repr=False)
    unit: Unit

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit is {self.unit!r}: expected one of {', '.join(UNITS)}")
        if len(self._index) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens, only {len(self._index)} of them distinct")
        if len(self.counts) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens and {len(self.counts)} counts")
        for token in (UNKNOWN, END) if self.unit == "words" else (UNKNOWN,):
            if token not in self._index:
                raise ValueError(f"a vocabulary of {self.unit} needs the token {token}")

    @cached_property
    def _index(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @property
    def size(self) -> int:
        """How many tokens there are, ``<unk>`` and ``<eos>`` among them."""
        return len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def unknown(self) -> int:
        """The number of ``<unk>``."""
        return self._index[UNKNOWN]

    @property
    def end(self) -> int:
        """The number of ``<eos>``, or by characters of the newline (``<unk>``'s if it has none)."""
        return self.number(END if self.unit == "words" else "\n")

    def number(self, token: str) -> int:
        """The number of a token, ``<unk>``'s if the vocabulary does not have it."""
        return self._index.get(token, self.unknown)

    def numbers(self, tokens: Iterable[str]) -> Iterator[int]:
        """The numbers of many tokens, one by one."""
        return map(self._index.get, tokens, itertools.repeat(self.unknown))

    def encode(self, text: str) -> list[int]:
        """The numbers of the tokens of a text."""
        if self.unit == "words":
            return list(self.numbers(tokenize(text)))
        return list(self.numbers(text))

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of some numbers.

        By characters ``<unk>`` becomes U+FFFD. By words, a space stands between two words and a
        newline for ``<eos>``; so a longer list decodes to a text that begins with the text of the
        shorter, and to words that encode to the same numbers.

        Raises:
            IndexError: If a number is not between 0 and ``size - 1``.
        """
        tokens = [self._token(int(number)) for number in numbers]
        if self.unit == "characters":
            return "".join("\N{REPLACEMENT CHARACTER}" if t == UNKNOWN else t for t in tokens)
        pieces: list[str] = []
        for token in tokens:
            if token == END:
                pieces.append("\n")
            else:
                pieces.append(f" {token}" if pieces and pieces[-1] != "\n" else token)
        return "".join(pieces)

    def _token(self, number: int) -> str:
        if not 0 <= number < self.size:  # a negative one would count from the end
            raise IndexError(f"token {number} of a vocabulary of {self.size}")
        return self.tokens[number]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as JSON."""
        content = {"unit": self.unit, "tokens": self.tokens, "counts": self.counts}
        files.write_text(Path(path), json.dumps(content, ensure_ascii=False))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read what `save` wrote.

        Raises:
            DataError: If the file is missing or is not a vocabulary.
        """
        try:
            with read_errors(path):
                content = storage.read(Path(path), _VocabularyContent)
            return cls(tuple(content["tokens"]), tuple(content["counts"]), content["unit"])
        except ValueError as error:
            raise DataError(f"{path} is not a vocabulary, or is damaged: {error}") from error


def tokenize(text: str) -> list[str]:
    """The words of a text, with ``<eos>`` for each newline."""
    return text.replace("\n", f" {END} ").split()


def most_frequent(
    counts: Iterable[tuple[str, int]],
    unit: Unit,
    *,
    total: int,
    min_count: int = 1,
    max_size: int | None = None,
) -> Vocabulary:
    """The vocabulary of the tokens that are frequent enough.

    ``<unk>`` and (by words) ``<eos>`` are always there and count in `max_size`. ``<unk>`` gets
    the count of all that is left out. Tokens of the same count stand in the order of their
    characters' code points, so the vocabulary is a function of the counts alone.

    Args:
        counts: Each token of the training text and how often it occurs there, in any order.
        unit: ``"words"`` or ``"characters"``.
        total: Number of tokens in the training text.
        min_count: A token that occurs there less often is left out.
        max_size: The most tokens that the vocabulary may have; None for all.

    Raises:
        DataError: If the vocabulary would have more than `MOST` tokens.
    """
    special = (UNKNOWN, END) if unit == "words" else (UNKNOWN,)
    found = dict.fromkeys(special, 0)

    def others() -> Iterator[tuple[str, int]]:
        for token, count in counts:
            if token in found:
                found[token] = count
            elif count >= min_count:
                yield token, count

    # Never more in memory than may be kept: the counts may come from a file.
    room = min(MOST, max_size or MOST) - len(special)
    stream = others()
    if max_size is not None:
        kept = heapq.nsmallest(room, stream, key=_by_frequency)
    else:
        kept = list(itertools.islice(stream, room))
        size = len(kept) + sum(1 for _ in stream) + len(special)
        if size > MOST:
            raise DataError(
                f"the training text has {size} distinct {unit}, and a vocabulary holds at most "
                f"{MOST}: limit it with max_size (its maximum size) or min_count (how often a "
                "token must occur in the training text), or read the text by characters"
            )
    found[UNKNOWN] = total - sum(count for _, count in kept) - found.get(END, 0)
    ranked = sorted([*kept, *found.items()], key=_by_frequency)
    return Vocabulary(tuple(t for t, _ in ranked), tuple(c for _, c in ranked), unit)


def _by_frequency(entry: tuple[str, int]) -> tuple[int, str]:
    token, count = entry
    return -count, token


# --- counting -------------------------------------------------------------------------------------

# How often each word or character occurs in a text that does not fit in memory.


LONGEST = 256
"""Characters of the longest word; a longer one is read as ``<unk>``."""

_IN_MEMORY = 1 << 19
_CODE_POINTS = 0x110000


def iterate_words(texts: Iterable[str]) -> Iterator[list[str]]:
    """The words of a text that comes in parts, wherever the parts end.

    A word longer than `LONGEST` characters becomes ``<unk>``, so that a file without any white
    space stays as cheap as another.
    """
    begun = ""
    for part in texts:
        text = begun + part
        begun = ""
        found = tokenize(text)
        if found and not text[-1].isspace():
            begun = found.pop()[: LONGEST + 1]  # enough to know that it is too long
        if found:
            yield _drop_long(found)
    if begun:
        yield _drop_long([begun])


def _drop_long(found: list[str]) -> list[str]:
    if max(map(len, found)) <= LONGEST:
        return found
    return [word if len(word) <= LONGEST else UNKNOWN for word in found]


def code_points(text: str) -> np.ndarray:
    """The code points of a text, uint32, (characters,)."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def build_vocabulary(
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
    for part in iterate_words(texts):
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
    vocabulary = most_frequent(_merge_runs(runs), unit, **limits)
    for run in runs:
        run.unlink()
    return vocabulary


def _count_characters(texts: Iterable[str]) -> list[tuple[str, int]]:
    total = np.zeros(_CODE_POINTS, dtype=np.int64)
    for text in texts:
        found = np.bincount(code_points(text))
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


def _merge_runs(runs: list[Path]) -> Iterator[tuple[str, int]]:
    """Each word of some sorted runs, once, with the sum of its counts."""
    files = [run.open(encoding="utf-8", newline="\n") for run in runs]
    try:
        merged = heapq.merge(*map(_entries, files), key=itemgetter(0))
        for word, group in itertools.groupby(merged, key=itemgetter(0)):
            yield word, sum(number for _, number in group)
    finally:
        for file in files:
            file.close()


def number_table(vocabulary: Vocabulary, dtype: np.dtype[Any]) -> np.ndarray:
    """The number of each code point in a vocabulary of characters, (1,114,112,)."""
    numbers = np.full(_CODE_POINTS, vocabulary.unknown, dtype)
    for number, token in enumerate(vocabulary.tokens):
        if token != UNKNOWN:
            numbers[ord(token)] = number
    return numbers
