"""Which files are meant by the words of a command line: files, folders and patterns."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# --- natural --------------------------------------------------------------------------------------

# An order of files in which image 9 comes before image 10.


def natural_key(path: Path) -> tuple[tuple[tuple[int, str | int], ...], str]:
    """The key of an order in which numbers within names count as numbers."""
    text = str(path)
    parts = re.split(r"([0-9]+)", text)
    # Every second part is a number. Names such as 1 and 01 differ in the text alone.
    return tuple((place % 2, int(p) if place % 2 else p) for place, p in enumerate(parts)), text


# --- naming ---------------------------------------------------------------------------------------


class PictureError(ValueError):
    """There are no images where some were named; the message says where."""


def pictures(words: Sequence[str], *, without: Path | None = None) -> list[Path]:
    """Return the images that words name, as absolute paths, each once.

    A folder stands for all images in it and in its folders, by the endings of their names; hidden
    ones are left out. A file is taken whatever its ending. A word with ``*``, ``?`` or ``[`` that
    names neither is a pattern, as a shell has it, with ``**`` for any folders. Words keep their
    order; what one names is in natural order: image 9 before image 10.

    Args:
        words: as they were given.
        without: a folder whose images are left out: what an earlier call has drawn there.

    Raises:
        PictureError: a word names nothing, or a folder has no images.
    """
    drawn = None if without is None else without.resolve()
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            inside = _inside(path)
            new = _outside(drawn, inside)
            if not new:
                other = f" but those in {without}, where the results go" if inside else ""
                raise PictureError(f"the folder {word} has no images{other}")
        elif path.exists():
            new = [_absolute(path)]
        elif glob.has_magic(word):
            matches = map(Path, glob.glob(str(path), recursive=True))
            files = sorted((each for each in matches if each.is_file()), key=natural_key)
            new = _outside(drawn, map(_absolute, files))
            if not new:
                raise PictureError(f"no file matches {word}")
        else:
            raise PictureError(f"there is no file or folder {word}")
        found |= dict.fromkeys(new)
    return list(found)


def _absolute(path: Path) -> Path:
    """The one name of a file, however its folder is written; a link is a file of its own."""
    return path.parent.resolve() / path.name


def _outside(folder: Path | None, paths: Iterable[Path]) -> list[Path]:
    """Those of absolute paths that are not in a folder."""
    return [path for path in paths if folder is None or not path.is_relative_to(folder)]


def _inside(folder: Path) -> list[Path]:
    from PIL import Image

    endings = set(Image.registered_extensions())
    found: list[Path] = []
    for root, folders, names in os.walk(folder.resolve()):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(root, name) for name in names if not name.startswith("."))
        found += [path for path in paths if path.suffix.lower() in endings]
    return sorted(found, key=natural_key)
