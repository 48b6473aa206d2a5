"""The error of this package, and disk errors turned into it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equilibria.words import printable


class DataError(RuntimeError):
    """A data set that is missing, damaged or out of reach; the message says what to do."""


def check_name(name: str) -> None:
    """Raise DataError for the name of a file or folder that is not UTF-8, as files of a run are."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"the name {printable(name)} is not UTF-8: rename it") from None


@contextmanager
def reading(what: object, *damaged: type[Exception]) -> Iterator[None]:
    """Turn an OSError, or what a decoder raises where `what` is `damaged`, into a DataError."""
    try:
        yield
    except damaged as error:
        raise DataError(f"{what} is damaged ({error}): delete it and run again") from error
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror or error}") from error


@contextmanager
def writing(path: Path, elsewhere: str) -> Iterator[None]:
    """Turn an OSError into a DataError; the option or variable `elsewhere` names other folders."""
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC
        problem = "the disk is full: free some space" if full else f"{error.strerror or error}"
        raise DataError(
            f"{path.name} cannot be written to {path.parent} ({problem}, or name another folder "
            f"with {elsewhere})"
        ) from error
