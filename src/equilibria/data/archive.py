"""Files of a tar archive, read without unpacking it to disk, or of the folder that was in it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from equilibria.data.errors import DataError, reading
from equilibria.data.regular import open_file

LARGEST = 1 << 30
"""Bytes to which an archive may unpack: those of CIFAR, the largest, have a fifth of it."""

_PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""How an archive is unpacked, by its first bytes."""

DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
"""What reading a damaged archive raises."""


def members(
    path: Path, wanted: Callable[[str], bool], largest: int | None = None
) -> Iterator[tuple[str, bytes]]:
    """The files of a tar archive, compressed or not, in its order.

    Args:
        path: The archive.
        wanted: Given the name of a file, returns whether to read it.
        largest: Bytes to which the archive may unpack; None for `LARGEST`.

    Yields:
        Name and content of each file that is wanted.

    Raises:
        DataError: If the archive cannot be read, is damaged, or unpacks to too many bytes.
    """
    for name, file in opened(path, wanted, largest):
        with reading(path, *DAMAGED):
            content = file.read()
        yield name, content


def opened(
    path: Path, wanted: Callable[[str], bool], largest: int | None = None
) -> Iterator[tuple[str, IO[bytes]]]:
    """As `members`, with each file open for reading until the next one is asked for.

    If reading one raises one of `DAMAGED`, it is for the caller to say what is damaged.
    """
    largest = LARGEST if largest is None else largest
    with (
        reading(path, *DAMAGED),
        open_file(path) as stored,
        _unpacked(stored) as file,
        tarfile.open(fileobj=cast(Any, _Limited(file, path, largest)), mode="r|") as archive,
    ):
        for entry in archive:
            name = entry.name.removeprefix("./")
            file = archive.extractfile(entry) if entry.isfile() and wanted(name) else None
            if file is not None:
                yield name, file


def _unpacked(stored: BinaryIO) -> BinaryIO:
    head = stored.read(6)
    stored.seek(0)
    unpack = next((each for magic, each in _PACKED.items() if head.startswith(magic)), None)
    return stored if unpack is None else cast(BinaryIO, unpack(stored))


class _Limited:
    """What an archive unpacks to, up to a limit: what its headers say binds nobody."""

    def __init__(self, file: BinaryIO, path: Path, largest: int) -> None:
        self._file, self._path, self._largest, self._left = file, path, largest, largest

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise DataError(
                f"{self._path} unpacks to more than {self._largest:,} bytes, so it is damaged or "
                "the wrong file: delete it and run again"
            )
        return block


def contents(paths: Sequence[Path], folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """The content of some files by name, whether they are in an archive or unpacked.

    Args:
        paths: The archive alone, or the files in the order of `names`.
        folder: The folder of the archive that has them.
        names: Names of the files.

    Raises:
        DataError: If a file cannot be read, or the archive is damaged or lacks one.
    """
    if paths[0].name == names[0]:
        with reading(paths[0].parent):
            return {name: path.read_bytes() for name, path in zip(names, paths, strict=True)}
    wanted = {f"{folder}/{name}": name for name in names}
    found = {wanted[name]: content for name, content in members(paths[0], wanted.__contains__)}
    if missing := [name for name in wanted if wanted[name] not in found]:
        raise DataError(f"{paths[0]} does not contain {missing[0]}: it is a different file")
    return found
