"""Files of archives, read without unpacking them to disk, or of the folder that was packed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Self, cast

from typing_extensions import override

from equilibria.run.data.storage import DataError, open_file, read_errors

LARGEST = 1 << 30
"""Bytes to which a file may unpack, where its content is not known: the archives of CIFAR, the
largest, have a fifth of it."""

_PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""How an archive is unpacked, by its first bytes."""

DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
"""What reading a damaged archive raises."""

DAMAGED_ZIP = (
    *(zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, lzma.LZMAError),
    UnicodeDecodeError,  # of a member's name
)
"""What reading a damaged zip archive raises, or one with an unknown compression."""

_BLOCK = 1 << 20


def read_tar(
    path: Path, wanted: Callable[[str], bool], largest: int = LARGEST
) -> Iterator[tuple[str, bytes]]:
    """The files of a tar archive, compressed or not, in its order.

    Args:
        path: The archive.
        wanted: Given the name of a file, returns whether to read it.
        largest: Bytes to which the archive may unpack.

    Yields:
        Name and content of each file that is wanted.

    Raises:
        DataError: If the archive cannot be read, is damaged, or unpacks to too many bytes.
    """
    for name, file in open_tar(path, wanted, largest):
        with read_errors(path, *DAMAGED):
            content = file.read()
        yield name, content


def open_tar(
    path: Path, wanted: Callable[[str], bool], largest: int = LARGEST
) -> Iterator[tuple[str, IO[bytes]]]:
    """As `read_tar`, with each file open for reading until the next one is asked for.

    If reading one raises one of `DAMAGED`, it is for the caller to say what is damaged.
    """
    with read_errors(path, *DAMAGED), open_file(path) as stored, _unpack(stored) as unpacked:
        for entry, file in iterate_entries(Limited(unpacked, path, largest)):
            if wanted(name := entry.name.removeprefix("./")):
                yield name, file


def iterate_entries(file: Any) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """The regular files of a tar archive, each open for reading until the next one is asked for.

    `tarfile` takes a damaged header, and the end of a file that was cut between two members, for
    the end of the archive. Here an archive ends with two blocks of zeros, and nothing but zeros
    follows; reading on to the end of the stream has its checksum verified too.

    Args:
        file: The archive, unpacked, or in memory whether packed or not.

    Raises:
        tarfile.TarError: If the archive is damaged or ends early (and others of `DAMAGED`).
    """
    mode: Any = "r:*" if isinstance(file, io.BytesIO) else "r|"
    with tarfile.open(fileobj=file, mode=mode, tarinfo=_Header) as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isfile() else None
            if content is not None:
                yield entry, content
        rest = cast(BinaryIO, archive.fileobj)
        second = rest.read(tarfile.BLOCKSIZE)
        if len(second) < tarfile.BLOCKSIZE or any(second):
            raise tarfile.ReadError("one block of zeros, where two end an archive")
        while block := rest.read(_BLOCK):
            if block.strip(b"\0"):
                raise tarfile.ReadError("other bytes follow the end of the archive")


class _Header(tarfile.TarInfo):
    """A member, whose header is whole."""

    @classmethod
    @override
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # the end
            problem = str(error) if buf else "it ends without two blocks of zeros: it was cut"
            raise tarfile.ReadError(problem) from None


def _unpack(stored: BinaryIO) -> BinaryIO:
    head = stored.read(6)
    stored.seek(0)
    unpack = next((each for magic, each in _PACKED.items() if head.startswith(magic)), None)
    return stored if unpack is None else cast(BinaryIO, unpack(stored))


class Limited:
    """What an archive unpacks to, up to a limit: what its headers say binds nobody."""

    def __init__(self, file: BinaryIO | io.BufferedIOBase, path: Path, largest: int) -> None:
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


def open_zip(file: str | Path | BinaryIO, path: Path) -> zipfile.ZipFile:
    """Open a zip archive whose members have names of their own and no password.

    Args:
        file: The archive.
        path: For messages.

    Raises:
        DataError: If two members have one name, or one is encrypted.
        zipfile.BadZipFile: If it is damaged, or none (and others of `DAMAGED_ZIP`).
    """
    archive = zipfile.ZipFile(file)
    counts = Counter(entry.filename for entry in archive.infolist() if not entry.is_dir())
    if twice := [name for name, count in counts.items() if count > 1]:
        raise DataError(f"{path} has two members called {twice[0]}: pack it anew, with one of them")
    if any(entry.flag_bits & 1 for entry in archive.infolist()):
        raise DataError(f"{path} is encrypted: pack it anew, without a password")
    return archive


def read_members(
    paths: Sequence[Path], names: Sequence[str], largest: int
) -> Iterator[tuple[str, bytes]]:
    """Name and content of some files, whether they are in a zip archive or unpacked.

    Args:
        paths: The archive alone, in whichever folder it has them, or the files in that order.
        names: Names of the files.
        largest: Bytes that are read of each at most.

    Raises:
        DataError: If a file cannot be read, or the archive is damaged or lacks one.
    """
    if (path := paths[0]).suffix != ".zip":
        for name, path in zip(names, paths, strict=True):
            with read_errors(path), open_file(path) as file:
                yield name, file.read(largest)
        return
    with (
        read_errors(path, *DAMAGED_ZIP),
        open_file(path) as stored,
        open_zip(stored, path) as packed,
    ):
        places = packed.namelist()
        inside = {p.split("/", i)[-1]: p for p in places for i in range(p.count("/") + 1)}
        for name in names:
            if name not in inside:
                raise DataError(f"{path} does not contain {name}: it is a different file")
            with packed.open(inside[name]) as file:
                yield name, file.read(largest)


def find_member(archive: zipfile.ZipFile, name: str) -> str | None:
    """The member of that name, or, where the folder was not packed, without it; None for none."""
    names = archive.namelist()
    return next((each for each in (name, name.rpartition("/")[2]) if each in names), None)


def read_contents(paths: Sequence[Path], folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """The content of some files by name, whether they are in an archive or unpacked.

    Args:
        paths: The archive alone, or the files in the order of `names`.
        folder: The folder of the archive that has them.
        names: Names of the files.

    Raises:
        DataError: If a file cannot be read, or the archive is damaged or lacks one.
    """
    if paths[0].name == names[0]:
        with read_errors(paths[0].parent):
            return {name: path.read_bytes() for name, path in zip(names, paths, strict=True)}
    wanted = {f"{folder}/{name}": name for name in names}
    found = {wanted[name]: content for name, content in read_tar(paths[0], wanted.__contains__)}
    if missing := [name for name in wanted if wanted[name] not in found]:
        raise DataError(f"{paths[0]} does not contain {missing[0]}: it is a different file")
    return found
