"""A user's text file, split into three consecutive parts."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

from equilibria.run.data.errors import DataError, reading
from equilibria.zoo.io import checksums
from equilibria.zoo.io.encodings import marked
from equilibria.zoo.io.vocabulary import Unit
from equilibria.zoo.language.data import splitting
from equilibria.zoo.language.data.encode import CONVERTED, Source
from equilibria.zoo.language.data.reading import Piece, convert

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
    checksum = checksums.digest(path)

    def check() -> None:
        if checksums.digest(path) != checksum:
            raise DataError(f"{path} changed while it was read: run again when it is complete")

    def pieces(folder: Path) -> dict[str, Piece]:
        text = path
        if not plain:
            text = folder / CONVERTED
            convert(path, encoding, text)
        if whole:
            return {"test": Piece(text)}
        return splitting.pieces(text, unit, valid_share, test_share)

    key = (checksum, "whole") if whole else (checksum, valid_share, test_share)
    return Source(
        name=Path(file).stem,
        key=key if plain else (*key, encoding),
        origin=str(path),
        pieces=pieces,
        check=check,
    )


def _check_file(path: Path, plain: bool) -> None:
    with reading(path):
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
    if plain and head.count(0) > len(head) / 8 and marked(head) is None:  # as of ASCII in UTF-16
        raise DataError(
            f"{path} has many bytes that are 0: if it is a text, name its encoding with "
            "--task.encoding utf-16-le, utf-16-be or utf-32, and else give another file"
        )
