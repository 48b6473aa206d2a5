"""Files of optical flow, by their endings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from equilibria.run.data.errors import DataError
from equilibria.zoo.flow.data import flo, kitti_png, pfm
from equilibria.zoo.flow.data.field import FlowField

__all__ = ["READERS", "read_flow", "suffix_of", "write_flow"]

READERS: dict[str, Callable[[Path], FlowField]] = {
    ".flo": flo.read,
    ".flo.xz": flo.read,
    ".pfm": pfm.read,
    ".png": kitti_png.read,
}
"""What reads a file, by its ending in small letters."""

_WRITERS = {".flo": flo.write, ".pfm": pfm.write, ".png": kitti_png.write}


def suffix_of(path: Path) -> str:
    """The ending of a file of flow, in small letters; empty where it is none."""
    return next((suffix for suffix in READERS if path.name.lower().endswith(suffix)), "")


def read_flow(path: str | os.PathLike[str]) -> FlowField:
    """Read optical flow from a file.

    Args:
        path: ``.flo`` or ``.flo.xz`` (Middlebury, Sintel, FlyingChairs), ``.pfm``
            (FlyingThings3D), or ``.png`` of 16-bit RGB (KITTI, HD1K).

    Raises:
        DataError: If the file is missing, truncated or damaged, of another format, has NaN or
            infinite flow, or no valid pixel; the message names it.
    """
    path = Path(path)
    if not (suffix := suffix_of(path)):
        raise DataError(f"{path} is no file of flow: expected one of {', '.join(READERS)}")
    return READERS[suffix](path)


def write_flow(path: str | os.PathLike[str], field: FlowField) -> None:
    """Write optical flow to a file, whole or not at all.

    ``.flo`` and ``.pfm`` keep every digit; ``.png`` is KITTI's, rounded to 1/64 pixel. Pixels that
    are not valid are marked.

    Args:
        path: The file, which ends with ``.flo``, ``.pfm`` or ``.png``.
        field: What to write.

    Raises:
        ValueError: If the ending is another, or the format cannot hold the field: ``.png`` flow of
            512 pixels or more, ``.pfm`` pixels that are not valid.
        DataError: If the file cannot be written; what was there before is unchanged.
    """
    path = Path(path)
    write = _WRITERS.get(suffix_of(path))
    if write is None:
        raise ValueError(f"{path.name}: flow is written to {', '.join(_WRITERS)} files")
    write(path, field)
