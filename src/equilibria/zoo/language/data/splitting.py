"""Where a text is cut into three parts that follow each other."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np

from equilibria.zoo.io.vocabulary import Unit
from equilibria.zoo.language.data import reading
from equilibria.zoo.language.data.reading import Piece

_NEWLINE = 10
_SPACE = np.zeros(256, dtype=bool)
_SPACE[list(b" \t\n\r\v\f")] = True
_NEAR = 1 << 16


def pieces(path: Path, unit: Unit, valid_share: float, test_share: float) -> dict[str, Piece]:
    """Where the splits of a file lie.

    By characters the shares are of the bytes, and a split begins at any character. By words they
    are of the words and lines, so that a line of many megabytes without a space counts as one,
    and a split begins with a line (with a word, where the line is long for the split).
    """
    size = path.stat().st_size
    shares = (valid_share + test_share, test_share)
    if unit == "words":
        first, second = _between_words(path, shares, near=min(valid_share, test_share) / 2)
    else:
        first, second = (_between_characters(path, int(size * (1 - share))) for share in shares)
    return {
        "train": Piece(path, 0, first),
        "valid": Piece(path, first, second),
        "test": Piece(path, second, size),
    }


def _between_characters(path: Path, place: int) -> int:
    """The first place from `place` on at which a character begins."""
    inside = re.match(rb"[\x80-\xbf]*", _read(path, place, 3))  # bytes that go on with one
    return place + (inside.end() if inside else 0)


def _between_words(path: Path, shares: tuple[float, ...], near: float) -> list[int]:
    """The places after which those shares of the tokens come; `near` is how far a line may be."""
    last, sums = b"\n", [0]
    for block in Piece(path).blocks():
        sums.append(sums[-1] + int(_ends(block, last).sum()))
        last = block[-1:]
    return [_after(path, sums, int(sums[-1] * (1 - share)), near * sums[-1]) for share in shares]


def _after(path: Path, sums: list[int], number: int, near: float) -> int:
    """The place after `number` tokens, or after the line if that ends at most `near` tokens later.

    `sums` has the tokens that end before each block, and those of all blocks.
    """
    if number == 0:
        return 0
    block = int(np.searchsorted(sums, number)) - 1
    start = block * reading.BLOCK
    last = _read(path, start - 1, 1) if start else b"\n"
    ends = np.cumsum(_ends(_read(path, start, reading.BLOCK), last))
    place = start + int(np.searchsorted(ends, number - sums[block])) + 1
    last, rest = _read(path, place - 1, 1), _read(path, place, _NEAR)
    line = rest.find(b"\n") + 1
    if last != b"\n" and line and _ends(rest[:line], last).sum() <= near:
        place += line
    return place


def _ends(block: bytes, last: bytes) -> np.ndarray:
    """How many tokens end with each byte of a block: words before a space, lines with a newline.

    `last` is the byte before the block.
    """
    codes = np.frombuffer(last + block, dtype=np.uint8)
    space = _SPACE[codes]
    return (space[1:] & ~space[:-1]).astype(np.uint8) + (codes[1:] == _NEWLINE)


def _read(path: Path, start: int, count: int) -> bytes:
    return b"".join(itertools.islice(Piece(path, start, start + count).blocks(), 1))
