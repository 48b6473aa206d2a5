"""Checksums of files: computing and checking them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

from equilibria.data.errors import DataError, reading


def digest(path: Path, algorithm: str = "sha256", *, unpacked: bool = False) -> str:
    """``sha256:...`` over the bytes of a file, or another algorithm of hashlib.

    With `unpacked`, over the content of a gzipped file, which is never in memory as a whole.

    Raises:
        DataError: If the file cannot be read, or is not gzipped.
    """
    with (
        reading(path, gzip.BadGzipFile, EOFError, zlib.error),
        gzip.open(path) if unpacked else path.open("rb") as file,
    ):
        total = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))  # pyright: ignore[reportArgumentType]
    return f"{algorithm}:{total.hexdigest()}"


def mismatch(path: Path, checksum: str, *, unpacked: bool = False) -> str:
    """How a file, or its content, differs from ``ALGORITHM:DIGITS``; empty if it does not."""
    algorithm, _, expected = checksum.partition(":")
    found = digest(path, algorithm, unpacked=unpacked).partition(":")[2]
    if found == expected.lower():
        return ""
    return f"its {algorithm}{' when unpacked' * unpacked} is {found}, expected {expected}"


def check(path: Path, checksum: str, *, unpacked: bool = False) -> None:
    """Raise DataError unless a file, or its content, has this ``ALGORITHM:DIGITS``."""
    if problem := mismatch(path, checksum, unpacked=unpacked):
        raise DataError(
            f"{path} is damaged or the wrong file: {problem}. If it belongs to another data set "
            "with the same file names, name another folder with --data-dir; otherwise delete it "
            "and run again"
        )
