"""Seven seconds of music: the recording that papers on coordinate networks fit."""

from __future__ import annotations

from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.signal.data.sets import SignalSet
from equilibria.zoo.signal.data.sound import read_sound

__all__ = ["BACH"]


def read(
    files: Files,
    *,
    rate: int | None = None,
    start: float = 0.0,
    seconds: float | None = None,
) -> SignalSet:
    """The recording, or a part of it; see `sound.read_sound`.

    Args:
        files: The recording.
        rate: Samples per second, such as 11,025; None for its own 44,100.
        start: Where the part begins, in seconds.
        seconds: How long it is; None for the rest.

    Raises:
        DataError: If it is missing, damaged or shorter.
    """
    return SignalSet.of(files.title, [read_sound(files.paths[0], rate, start, seconds)])


BACH = Entry(
    name="bach",
    title="Bach, 7 s",
    read=read,
    remotes=(
        Remote(
            files=("gt_bach.wav",),
            addresses=("https://raw.githubusercontent.com/vsitzmann/siren/master/data/",),
            licence="MIT",
            size="1.2 MB",
            inside=(".", "audio"),
        ),
    ),
)
