"""Flow in colours: one scale for all pictures of a folder, and a video of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from equilibria import files
from equilibria.zoo.flow.data import read_flow
from equilibria.zoo.flow.predict.frames import LEGEND
from equilibria.zoo.io import video
from equilibria.zoo.io.colours import Lengths, colour_png, flow_colours, legend
from equilibria.zoo.io.rows import Journal

__all__ = ["PERCENT", "draw_all", "draw_one"]

PERCENT = 99.0
"""Of the lengths of all flow, the percentile that is the scale where none is given."""


def draw_one(path: Path, flow: np.ndarray, scale: float | None = None) -> float:
    """Write a flow in colours as PNG, and return its scale in pixels.

    Args:
        path: of the picture.
        flow: (2, height, width) in pixels.
        scale: in pixels; None for the 99th percentile of its lengths.
    """
    if scale is None:
        lengths = Lengths()
        lengths.add(flow)
        scale = lengths.percentile(PERCENT)
    files.write_bytes(path, colour_png(flow_colours(flow, scale)))
    return scale


def draw_all(
    journal: Journal, scale: float | None = None, film: Path | None = None, rate: float = 15.0
) -> tuple[float, int, int]:
    """Write all flow of a folder in colours of one scale, and the legend.

    Args:
        journal: whose rows name the files.
        scale: in pixels; None for the 99th percentile of the lengths of all pixels of all files.
        film: video of the pictures; None for none.
        rate: its frames per second.

    Returns:
        The scale, how many pictures there are, and how many of them the film has: those of the
        size of the first.

    Raises:
        DataError: a file of flow is damaged, or PyAV is missing.
    """
    found = [Path(row["flow"]) for row in journal.read() if "flow" in row]
    if scale is None:
        lengths = Lengths()
        for path in found:
            lengths.add(_flow(journal.folder / path)[0])
        scale = lengths.percentile(PERCENT)
    folder = journal.folder / "colours"
    folder.mkdir(exist_ok=True)

    def pictures() -> Iterator[np.ndarray]:
        for path in found:
            picture = flow_colours(*_arguments(journal.folder / path, scale))
            content = colour_png(picture)
            target = folder / f"{path.stem}.png"
            files.write(target, lambda file, content=content: file.write(content), flush=False)
            yield picture

    shown = 0
    if film is not None and found:
        shown = video.write(film, pictures(), rate)
    else:
        for _ in pictures():
            pass
    files.write_bytes(folder / f"{LEGEND}.png", colour_png(legend(scale)))
    return scale, len(found), shown


def _flow(path: Path) -> tuple[np.ndarray, np.ndarray]:
    field = read_flow(path)
    return field.flow.numpy(), field.valid.numpy()


def _arguments(path: Path, scale: float) -> tuple[np.ndarray, float, np.ndarray]:
    flow, valid = _flow(path)
    return flow, scale, valid
