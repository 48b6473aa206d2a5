"""The words or characters of a corpus, and their numbers."""

from __future__ import annotations

import heapq
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypedDict

from equilibria import files
from equilibria.run.data import stored
from equilibria.run.data.errors import DataError, reading

UNKNOWN = "<unk>"
END = "<eos>"
MOST = 1 << 20
"""Maximum size of a vocabulary."""

Unit = Literal["words", "characters"]
UNITS: tuple[Unit, ...] = ("words", "characters")


class _Stored(TypedDict):
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
            return list(self.numbers(split_words(text)))
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
            with reading(path):
                content = stored.read(Path(path), _Stored)
            return cls(tuple(content["tokens"]), tuple(content["counts"]), content["unit"])
        except ValueError as error:
            raise DataError(f"{path} is not a vocabulary, or is damaged: {error}") from error


def split_words(text: str) -> list[str]:
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
