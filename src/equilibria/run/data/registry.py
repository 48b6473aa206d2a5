"""All data sets by name, and a user's own files, read by what applications register."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from equilibria.run import registry
from equilibria.run.data.storage import DataError
from equilibria.words import nearest

PACKAGES = {
    "PIL": "Pillow",
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
}
"""Packages of the extra `cli` that readers import, by the name of the module."""


def available(kind: type | UnionType = object) -> list[str]:
    """The names that `load` knows, sorted.

    Args:
        kind: Types of data sets to list, such as `NodeSet`; all by default.
    """
    return sorted(name for name, (gives, _) in registry.find("data").items() if _is(gives, kind))


def register(name: str, kind: type, entry: Any) -> None:
    """Let `load` and recipes name a data set.

    Args:
        name: For `load`; the entry has the same.
        kind: Type that its reader returns, such as `Dataset`.
        entry: Its `Entry`, or where that is: ``"module:ENTRY"``, imported on demand.

    Raises:
        ValueError: If the name is taken, or the entry has another one.
    """
    if not isinstance(entry, str) and entry.name != name:
        raise ValueError(f"the entry of data set '{name}' is called '{entry.name}'")
    known = registry.find("data")
    if known.setdefault(name, (kind, entry)) != (kind, entry):
        raise ValueError(f"there is a data set '{name}' already")


def entry(name: str) -> Any:
    """The entry of a data set, whose reader is imported here."""
    return registry.resolve(registry.find("data")[name][1])


def _is(gives: type | str, kind: type | UnionType) -> bool:
    """Whether a registered type, or the place of one, is among the types `kind`."""
    if kind is object:
        return True
    cls = registry.find_imported(
        gives
    )  # one that has not been is another type than `kind`, which has
    return cls is not None and issubclass(cls, get_args(kind) or (kind,))


def _own(kind: type | UnionType) -> Any:
    """What reads a user's own files as the first of the types `kind` for which there is such."""
    found = (place for gives, place in registry.find("folders").items() if _is(gives, kind))
    return registry.resolve(next(found, None))


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    *,
    kind: type | UnionType = object,
    **options: Any,
) -> Any:
    """Read a data set, and download it first if it is not on disk.

    Official data on disk come before lower-quality copies on disk, which are read with a warning
    and named in the data set's title; what is not on disk is downloaded.

    Args:
        name: One of `available()`, or a folder of the user's own, read as the first of the types
            `kind` for which an application reads folders: of images with one subfolder per class,
            for all types.
        data_dir: Folder that is searched before ``$EQUILIBRIA_DATA`` and the user's cache.
        download: Whether missing files may be downloaded.
        kind: Types that may be returned; names of data sets of other types are unknown.
        options: What the data set's reader takes, such as ``unit`` for a text.

    Returns:
        What the reader of the data set makes: one of the types `kind`.

    Raises:
        ValueError: If no data set has that name; the message names the nearest.
        DataError: If the data are missing, damaged or out of reach, or a package of the extra
            `cli` that reads them is not installed.
    """
    if name in (names := available(kind)):
        known = entry(name)
        with _packages(known.title):
            return known.read(known.files(data_dir, download), **options)
    own = _own(kind)
    path = Path(name).expanduser()
    arrays = own is not None and own.arrays and path.suffix == ".npz"
    if own is not None and (path.is_dir() or (arrays and path.is_file())):
        with _packages(name):
            return own.read(name, **options)
    if own is not None and (Path(name).name != name or arrays):
        what = "file or folder" if own.arrays else "folder"
        raise DataError(f"there is no {what} {name}; {own.expected}")
    said = f"no data set is called {name!r}{', nor any folder' if own is not None else ''}"
    if name in available():
        said = f"the data set {name!r} is of another kind"
    raise ValueError(f"{said}{nearest(name, names)}")


@contextmanager
def _packages(title: str) -> Iterator[None]:
    """Turn the failed import of one of `PACKAGES` into a DataError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        raise DataError(
            f"{title} needs {package}, which is not installed: pip install 'equilibria[cli]', or "
            "in a clone pip install '.[cli]'"
        ) from error
