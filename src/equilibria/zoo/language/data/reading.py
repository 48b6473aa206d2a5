"""Text from a file, block by block: never more than a block of it is in memory."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from equilibria.run.data.storage import DataError, open_file, read_errors
from equilibria.zoo.io.archive import DAMAGED_ZIP, find_member, open_zip
from equilibria.zoo.io.delimited import describe_encoding

BLOCK = 1 << 20

_SAMPLE = 1 << 14
"""Bytes before and after one that is not UTF-8, by which the encoding is guessed."""

_REPLACED = "\N{REPLACEMENT CHARACTER}"

Errors = Literal["strict", "replace"]


@dataclass(frozen=True)
class Piece:
    """Some bytes of a file: a range of them, or one file in a zip archive.

    Attributes:
        path: The file.
        start: The first byte.
        stop: The byte after the last; None for all that follow.
        member: Name of a file in the archive `path`, read as it is unpacked; None where `path`
            is the text itself.
    """

    path: Path
    start: int = 0
    stop: int | None = None
    member: str | None = None

    def __str__(self) -> str:
        return f"{self.path}" if self.member is None else f"{self.member} in {self.path}"

    def blocks(self) -> Iterator[bytes]:
        """The bytes, at most `BLOCK` at a time.

        Raises:
            DataError: If the file cannot be read or the archive is damaged.
        """
        with read_errors(self, *DAMAGED_ZIP, KeyError):
            if self.member is None:
                with open_file(self.path) as file:
                    file.seek(self.start)
                    yield from _blocks(file, None if self.stop is None else self.stop - self.start)
            else:
                with (
                    open_zip(self.path, self.path) as archive,
                    archive.open(find_member(archive, self.member) or self.member) as file,
                ):
                    yield from _blocks(file, None)  # pyright: ignore[reportArgumentType]


@dataclass
class Count:
    """What a reader saw: bytes, Unicode characters, and characters put for invalid bytes."""

    bytes: int = 0
    characters: int = 0
    replaced: int = 0


def read_texts(
    piece: Piece, errors: Errors = "strict", count: Count | None = None
) -> Iterator[str]:
    """The text of a piece, decoded from UTF-8 block by block; a byte order mark is left out.

    Args:
        piece: What to read.
        errors: ``"replace"`` puts U+FFFD for bytes that are not UTF-8; ``"strict"`` raises.
        count: Where to add up what was read.

    Raises:
        DataError: If the bytes are not UTF-8; the message names the first such byte's offset.
    """
    count = count if count is not None else Count()
    place, rest = piece.start, b""
    blocks = piece.blocks()
    while True:
        block = next(blocks, None)
        data = rest + (block or b"")
        try:
            text, used = codecs.utf_8_decode(data, errors, block is None)
        except UnicodeDecodeError as error:
            raise DataError(_not_utf8(piece, place, data, error)) from error
        if place == 0 and text.startswith("\N{ZERO WIDTH NO-BREAK SPACE}"):
            text = text[1:]
        if errors == "replace":
            # The bytes EF BF BD are U+FFFD itself wherever they stand: nobody replaced those.
            done = memoryview(data)[:used].tobytes()
            count.replaced += text.count(_REPLACED) - done.count(_REPLACED.encode())
        count.bytes += used
        count.characters += len(text)
        place, rest = place + used, data[used:]
        if text:
            yield text
        if block is None:
            return


def _blocks(file: BinaryIO, length: int | None) -> Iterator[bytes]:
    while length is None or length > 0:
        block = file.read(BLOCK if length is None else min(BLOCK, length))
        if not block:
            return
        if length is not None:
            length -= len(block)
        yield block


def convert(path: Path, encoding: str, into: Path) -> None:
    """Write a text in UTF-8, block by block.

    Args:
        path: The text.
        encoding: Of it, one that Python knows.
        into: The file that is written.

    Raises:
        DataError: If the text cannot be read, or is in another encoding.
    """
    with (
        read_errors(path),
        open_file(path) as file,
        into.open("w", encoding="utf-8", newline="") as out,
    ):
        try:
            text = io.TextIOWrapper(file, encoding=encoding, newline="")
            while block := text.read(BLOCK):
                out.write(block)
        except UnicodeError as error:
            raise DataError(
                f"{path} is not in the encoding {encoding} ({error}): name another one with "
                "--task.encoding, or encoding= in Python"
            ) from None


def _not_utf8(piece: Piece, place: int, data: bytes, error: UnicodeDecodeError) -> str:
    around = data[max(0, error.start - _SAMPLE) : error.start + _SAMPLE]
    return (
        f"{piece} is not UTF-8: byte 0x{data[error.start]:02x} at offset {place + error.start} "
        f"({error.reason}); {describe_encoding(around)}. Convert it with iconv -f NAME -t UTF-8, "
        "or name its encoding in training: --task.encoding NAME, or encoding='NAME' in Python; or "
        "have invalid bytes replaced by U+FFFD: --task.errors replace, or errors='replace'"
    )
