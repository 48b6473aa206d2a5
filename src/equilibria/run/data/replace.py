"""Results on disk: whole, or not there at all; where they cannot be written, a `DataError`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from equilibria import files
from equilibria.run.data.errors import DataError, writing

__all__ = ["replace_file", "write_folder"]


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, so that there is never a part of it.

    Raises:
        DataError: If it cannot be written; what was there before is unchanged.
    """
    with writing(path, "--out"):
        files.write(path, lambda file: file.write(content), flush=False)


def write_folder(path: Path, content: Mapping[str, bytes]) -> None:
    """Write a folder of files that does not exist yet, so that there is never a part of it.

    Raises:
        DataError: If it exists, or cannot be written; there is no such folder then.
    """
    if path.exists():
        raise DataError(f"{path} exists: remove it, or name another folder with --out")
    with writing(path, "--out"):
        files.write_folder(path, content)
