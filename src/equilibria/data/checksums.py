"""Checksums of files: what a file is, and whether it is the right one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from equilibria.data.errors import DataError


def digest(path: Path, algorithm: str = "sha256") -> str:
    """``sha256:...`` over the bytes of a file, or another algorithm of hashlib.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            total = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    return f"{algorithm}:{total.hexdigest()}"


def check(path: Path, checksum: str) -> None:
    """Raise DataError unless the file has the checksum ``ALGORITHM:DIGITS``."""
    algorithm, _, expected = checksum.partition(":")
    found = digest(path, algorithm).partition(":")[2]
    if found != expected:
        raise DataError(
            f"{path} is damaged or another file: its {algorithm} is {found}, expected {expected}. "
            "If it is another data set of the same file names, name another folder with "
            "--data-dir; else delete it and run again"
        )
