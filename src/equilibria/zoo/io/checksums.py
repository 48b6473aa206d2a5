"""Checksums of files: computing and checking them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path

from equilibria.run.data.errors import DataError, reading
from equilibria.run.data.regular import open_file

_BLOCK = 1 << 20


LARGEST = 1 << 30
"""Bytes to which a file may unpack, where its content is not known."""


def digest(
    path: Path, algorithm: str = "sha256", *, unpacked: bool = False, largest: int = LARGEST
) -> str:
    """``sha256:...`` over the bytes of a file, or another algorithm of hashlib.

    With `unpacked`, over the content of a gzipped file, which is never in memory as a whole and of
    which at most `largest` bytes are unpacked.

    Raises:
        DataError: If the file cannot be read, is not gzipped, or unpacks to more bytes.
    """
    total = hashlib.new(algorithm, usedforsecurity=False)
    with (
        reading(path, gzip.BadGzipFile, EOFError, zlib.error),
        open_file(path) as stored,
        gzip.open(stored) if unpacked else stored as file,
    ):
        size = 0
        while block := file.read(_BLOCK):
            total.update(block)
            size += len(block)
            if unpacked and size > largest:
                raise DataError(
                    f"{path} unpacks to more than {largest:,} bytes, so it is damaged or the "
                    "wrong file: delete it and run again"
                )
    return f"{algorithm}:{total.hexdigest()}"


def fingerprint(root: Path, names: Iterable[str]) -> str:
    """``sha256:...`` over names, lengths and times of change of many files below a folder.

    Raises:
        DataError: If a file is not there.
    """
    with reading(root):
        stats = [(name, (root / name).stat()) for name in names]
    listed = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return f"sha256:{hashlib.sha256(repr(listed).encode()).hexdigest()}"


def mismatch(path: Path, checksum: str, *, unpacked: bool = False, largest: int = LARGEST) -> str:
    """How a file, or its content, differs from ``ALGORITHM:DIGITS``; empty if it does not."""
    algorithm, _, expected = checksum.partition(":")
    found = digest(path, algorithm, unpacked=unpacked, largest=largest).partition(":")[2]
    if found == expected.lower():
        return ""
    return f"its {algorithm}{' when unpacked' * unpacked} is {found}, expected {expected}"


def check(path: Path, checksum: str, *, unpacked: bool = False, largest: int = LARGEST) -> None:
    """Raise DataError unless a file, or its content, has this ``ALGORITHM:DIGITS``."""
    if problem := mismatch(path, checksum, unpacked=unpacked, largest=largest):
        raise DataError(
            f"{path} is damaged or the wrong file: {problem}. If it belongs to another data set "
            "with the same file names, name another folder with --data-dir; otherwise delete it "
            "and run again"
        )
