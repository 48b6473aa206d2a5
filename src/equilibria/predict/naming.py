"""Which files are meant by the words of a command line: files, folders and patterns."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PictureError", "natural", "pictures"]


class PictureError(ValueError):
    """There are no images where some were named; the message says where."""


def pictures(words: Sequence[str]) -> list[Path]:
    """Return the images that words name, as absolute paths, each once.

    A folder stands for all images in it and in its folders, by the endings of their names; hidden
    ones are left out. A file is taken whatever its ending. A word with ``*``, ``?`` or ``[`` that
    names neither is a pattern, as a shell has it, with ``**`` for any folders. Words keep their
    order; what one names is in natural order: image 9 before image 10.

    Raises:
        PictureError: a word names nothing, or a folder has no images.
    """
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            new = _inside(path)
            if not new:
                raise PictureError(f"the folder {word} has no images")
        elif path.exists():
            new = [path]
        elif glob.has_magic(word):
            matches = map(Path, glob.glob(str(path), recursive=True))
            new = sorted((each for each in matches if each.is_file()), key=natural)
            if not new:
                raise PictureError(f"no file matches {word}")
        else:
            raise PictureError(f"there is no file or folder {word}")
        found |= dict.fromkeys(each.absolute() for each in new)
    return list(found)


def natural(path: Path) -> tuple[tuple[int, str | int], ...]:
    """The key of an order in which numbers within names count as numbers."""
    parts = re.split(r"(\d+)", str(path))
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts)


def _inside(folder: Path) -> list[Path]:
    from PIL import Image

    endings = set(Image.registered_extensions())
    found: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(root, name) for name in names if not name.startswith("."))
        found += [path for path in paths if path.suffix.lower() in endings]
    return sorted(found, key=natural)
