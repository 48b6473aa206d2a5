"""A user's text file, split into three consecutive parts."""

from __future__ import annotations

import codecs
import itertools
import os
import re
from pathlib import Path

import numpy as np

from equilibria.run.data.storage import DataError, read_errors
from equilibria.zoo.io import download
from equilibria.zoo.io.delimited import read_mark
from equilibria.zoo.io.vocabulary import Unit
from equilibria.zoo.language.data import reading
from equilibria.zoo.language.data.corpus import CONVERTED, Source
from equilibria.zoo.language.data.reading import Piece, convert

# --- splitting ------------------------------------------------------------------------------------

# Where a text is cut into three parts that follow each other.


_NEWLINE = 10
_SPACE = np.zeros(256, dtype=bool)
_SPACE[list(b" \t\n\r\v\f")] = True
_NEAR = 1 << 16


def divide_text(path: Path, unit: Unit, valid_share: float, test_share: float) -> dict[str, Piece]:
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


# --- user -----------------------------------------------------------------------------------------


_HEAD = 1 << 14

# First bytes of compressed files that might be given as a text, and how to unpack them.
_PACKED = {
    b"\x1f\x8b": ("gzip", "gunzip -k"),
    b"BZh": ("bzip2", "bunzip2 -k"),
    b"\xfd7zXZ\0": ("xz", "unxz -k"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip"),
}


def source(
    file: str | os.PathLike[str],
    unit: Unit,
    *,
    valid_share: float = 0.05,
    test_share: float = 0.05,
    whole: bool = False,
    encoding: str = "utf-8",
) -> Source:
    """The first part of a file is for training, the next for validation, the last for testing.

    Args:
        file: A text.
        unit: ``"words"`` or ``"characters"``.
        valid_share: Share of the text for the validation split.
        test_share: Share of the text for the test split.
        whole: Whether all of the text is the test split, and there is no other.
        encoding: Of the text, one that Python knows.

    Raises:
        ValueError: If the shares are not positive or leave nothing to train on, or Python does not
            know the encoding.
        DataError: If the file is missing, empty, a folder, or compressed.
    """
    path = Path(os.path.realpath(Path(file).expanduser()))  # no error where links go in a circle
    if not (valid_share > 0 and test_share > 0 and valid_share + test_share < 1):
        raise ValueError(
            f"valid_share is {valid_share} and test_share {test_share}: expected two positive "
            "shares with a sum below 1"
        )
    try:
        plain = codecs.lookup(encoding).name == "utf-8"
        "".encode(encoding)  # LookupError where it turns bytes into bytes, as base64 does
    except (LookupError, ValueError):
        raise ValueError(
            f"encoding is {encoding!r}, which Python does not know: expected utf-8, cp1252, "
            "shift_jis or another of docs.python.org/3/library/codecs.html#standard-encodings"
        ) from None
    _check_file(path, plain)
    checksum = download.digest(path)

    def check() -> None:
        if download.digest(path) != checksum:
            raise DataError(f"{path} changed while it was read: run again when it is complete")

    def pieces(folder: Path) -> dict[str, Piece]:
        text = path
        if not plain:
            text = folder / CONVERTED
            convert(path, encoding, text)
        if whole:
            return {"test": Piece(text)}
        return divide_text(text, unit, valid_share, test_share)

    key = (checksum, "whole") if whole else (checksum, valid_share, test_share)
    return Source(
        name=Path(file).stem,
        key=key if plain else (*key, encoding),
        origin=str(path),
        pieces=pieces,
        check=check,
    )


def _check_file(path: Path, plain: bool) -> None:
    with read_errors(path):
        if not path.exists():
            raise DataError(f"{path} does not exist: give the path of a text file")
        if path.is_dir():
            raise DataError(f"{path} is a folder: give one text file, e.g. all of them joined")
        if not path.is_file():
            raise DataError(f"{path} is not a regular file: save the text to one and give that")
        with path.open("rb") as file:
            head = file.read(_HEAD)
    if not head:
        raise DataError(f"{path} is empty: give a file with some text")
    for magic, (kind, command) in _PACKED.items():
        if head.startswith(magic):
            raise DataError(
                f"{path} is compressed ({kind}), expected plain text: unpack it first, e.g. "
                f"{command} {path.name}"
            )
    if plain and head.count(0) > len(head) / 8 and read_mark(head) is None:  # as of ASCII in UTF-16
        raise DataError(
            f"{path} has many bytes that are 0: if it is a text, name its encoding with "
            "--task.encoding utf-16-le, utf-16-be or utf-32, and else give another file"
        )
