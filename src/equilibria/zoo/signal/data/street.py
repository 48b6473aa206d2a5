"""A film of frames that a car's camera took, of the images of CamVid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equilibria.run.data import registry
from equilibria.run.data.errors import DataError
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.signal.data.film import of_frames
from equilibria.zoo.signal.data.sets import SignalSet

__all__ = ["STREET"]

RATE = 1.0
"""Frames per second: those of CamVid that have masks are a second apart."""


def read(
    files: Files, *, size: Sequence[int] = (60, 80), count: int = 30, start: int = 62
) -> SignalSet:
    """Consecutive test frames of CamVid as a film, RGB.

    Args:
        files: Where CamVid is looked for.
        size: Height and width to which they are brought by means over areas.
        count: Frames, 2 or more.
        start: The first, of the 233 of the test part; those from 62 on are one drive.

    Raises:
        ValueError: If a number is impossible.
        DataError: If CamVid is missing or damaged, or has fewer frames.
    """
    if len(size) != 2 or min(size) < 2 or count < 2 or start < 0:
        raise ValueError(
            f"size is {list(size)}, count is {count} and start is {start}: expected a height and a "
            "width of 2 or more, 2 or more, and 0 or more"
        )
    found = registry.load("camvid", files.data_dir, files.may_download)
    if start + count > len(found.test):
        raise DataError(f"{found.title} has {len(found.test)} test frames, not {start + count}")
    name = f"frames {start} to {start + count - 1} of {found.title}"
    frames = [(Path(f"frame {k}"), found.test.image(k)) for k in range(start, start + count)]
    film = of_frames(frames, Path("street"), (size[0], size[1]), RATE)
    return SignalSet.of(name, [film])


STREET = Entry(
    name="street",
    title="street (frames of CamVid)",
    read=read,
    remotes=(
        Remote(
            files=(),
            addresses=("the data set camvid",),
            licence="CC BY-NC 4.0, for research",
        ),
    ),
)
