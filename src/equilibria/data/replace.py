"""Results on disk: whole, or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from equilibria.data.errors import DataError, writing

__all__ = ["replace_file", "write_folder"]


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, so that there is never a part of it.

    Raises:
        DataError: If it cannot be written; what was there before is unchanged.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path, "--out"):
        try:
            part.write_bytes(content)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files that does not exist yet, so that there is never a part of it.

    Raises:
        DataError: If it exists, or cannot be written; there is no such folder then.
    """
    if path.exists():
        raise DataError(f"{path} exists: remove it, or name another folder with --out")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path, "--out"):
        try:
            part.mkdir()
            for name, content in files.items():
                (part / name).write_bytes(content)
            part.rename(path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
