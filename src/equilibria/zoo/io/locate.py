"""Where data sets are looked for: the folder given, then $EQUILIBRIA_DATA, then the cache."""

import os
from pathlib import Path


def folders(name: str, data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders in which the files of a data set may lie, the likeliest first.

    Under each root (`data_dir`, ``$EQUILIBRIA_DATA``, the user's cache) the folder called `name`
    comes first, then the root itself.

    Args:
        name: Name of the data set, e.g. ``"mnist"``.
        data_dir: A root that comes before the others; None for none.
    """
    named = (data_dir, os.environ.get("EQUILIBRIA_DATA"))
    roots = [Path(root).expanduser() for root in named if root]
    return [place for root in (*roots, cache()) for place in (root / name, root)]


def downloads(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder to which a data set is downloaded: below `data_dir`, or in the user's cache.

    ``$EQUILIBRIA_DATA`` is the user's own folder of data, and nothing is written to it.
    """
    return (Path(data_dir).expanduser() if data_dir else cache()) / name


def cache() -> Path:
    """The folder for what the package downloads and makes, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "equilibria"
