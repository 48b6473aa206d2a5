"""The error of this package, and disk errors turned into it."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import json
import os
import stat
import sys
import time
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from equilibria import files
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
def read_errors(what: object, *damaged: type[Exception]) -> Iterator[None]:
    """Turn an OSError, or what a decoder raises where `what` is `damaged`, into a DataError."""
    try:
        yield
    except damaged as error:
        raise DataError(f"{what} is damaged ({error}): delete it and run again") from error
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror or error}") from error


@contextmanager
def write_errors(path: Path, elsewhere: str) -> Iterator[None]:
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


# --- regular --------------------------------------------------------------------------------------

# Regular files only: opening a pipe waits for ever, and reading a device need never end.


_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_file(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one, for reading bytes.

    Raises:
        OSError: If there is none, it cannot be read, or it is a folder, a pipe, a socket or a
            device, none of which is opened.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return path.open("rb")


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: As `open_file`; or it has more than `most` bytes, of which none is kept.
    """
    with open_file(path) as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return content


# --- replace --------------------------------------------------------------------------------------

# Results on disk: whole, or not there at all; where they cannot be written, a `DataError`.


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, so that there is never a part of it.

    Raises:
        DataError: If it cannot be written; what was there before is unchanged.
    """
    with write_errors(path, "--out"):
        files.write(path, lambda file: file.write(content), flush=False)


def write_folder(path: Path, content: Mapping[str, bytes]) -> None:
    """Write a folder of files that does not exist yet, so that there is never a part of it.

    Raises:
        DataError: If it exists, or cannot be written; there is no such folder then.
    """
    if path.exists():
        raise DataError(f"{path} exists: remove it, or name another folder with --out")
    with write_errors(path, "--out"):
        files.write_folder(path, content)


# --- extras ---------------------------------------------------------------------------------------

# Packages of extras, asked for where they are needed.


def require(module: str, package: str, extra: str, what: str) -> Any:
    """Import a module.

    Raises:
        DataError: If its package is not installed; the message names the extra that has it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise DataError(
            f"{what} needs {package}, which is not installed: pip install 'equilibria[{extra}]', "
            f"or in a clone pip install '.[{extra}]'"
        ) from error


# --- progress -------------------------------------------------------------------------------------

# Progress of long work, on the standard error.


_Item = TypeVar("_Item")

# Seconds between two lines: on a terminal one line that is rewritten, elsewhere a new one each.
_TERMINAL, _FILE = 1.0, 30.0


def track(items: Iterable[_Item], total: int | None, doing: str) -> Iterator[_Item]:
    """Yield items one by one; if that takes long, report how many there were.

    Args:
        items: What to go through.
        total: How many there are; None if unknown.
        doing: What is being done, e.g. ``"Reading images"``.
    """
    terminal = sys.stderr.isatty()
    every = _TERMINAL if terminal else _FILE
    whole = "" if total is None else f" of {total:,}"
    latest, printed = time.monotonic(), False
    for number, item in enumerate(items):
        if (now := time.monotonic()) - latest > every:
            line = f"{doing}: {number:,}{whole}"
            print(line, end="\r" if terminal else "\n", file=sys.stderr, flush=True)
            latest, printed = now, True
        yield item
    if printed and terminal and total is not None:
        print(f"{doing}: {total:,}{whole}", file=sys.stderr, flush=True)


# --- stored ---------------------------------------------------------------------------------------

# JSON files of a run folder, which may be a stranger's: regular, of a limited size, of one shape.
#
# A shape is a type as annotations have it: a TypedDict or a dataclass for an object, or one that is
# made of list, tuple, dict, unions, Literal, str, int, float, bool and None. A float of
# a dataclass may be null, as one is written that is not finite. Keys that a shape does not name may
# hold anything.


MOST = 1 << 28
"""Bytes of the largest file that is read."""

_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    types.NoneType: "null",
    dict: "an object",
    list: "a list",
}


def read(path: Path, shape: Any, *, spelt: bool = False) -> Any:
    """Return the content of a JSON file.

    Args:
        path: Of the file.
        shape: What it holds.
        spelt: Whether strings stand for numbers that are not finite; see `files.to_json`.

    Raises:
        OSError: It cannot be read, is no regular file, or has more than `MOST` bytes.
        ValueError: It is not JSON, or of another shape; the message names the key.
    """
    return parse(read_bytes(path, MOST), shape, spelt=spelt)


def parse(text: bytes, shape: Any, *, spelt: bool = False) -> Any:
    """Return what a text in JSON holds; see `read`."""
    try:
        content = files.from_json(text.decode()) if spelt else json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check(content, shape)
    return content


def check(content: Any, shape: Any) -> None:
    """Raise ValueError unless what a JSON file holds has a shape."""
    for where, expected, value in _misfits(content, shape, "", False):
        given = "it is missing" if value is _NOWHERE else f"got {_short(value)}"
        raise ValueError(f"{where.removeprefix('.') or 'it'} must be {expected}; {given}")


_NOWHERE = object()


def _misfits(content: Any, shape: Any, key: str, null: bool) -> Iterator[tuple[str, str, Any]]:
    """Where content has another shape: the key, what is expected in words, and what is there."""
    kind, members = typing.get_origin(shape) or shape, typing.get_args(shape)
    if kind in (typing.Union, types.UnionType):
        found = [list(_misfits(content, member, key, null)) for member in members]
        if all(found):  # of the member that it is most like, the first misfit lies deepest
            yield max((each[0] for each in found), key=lambda each: len(each[0]))
    elif kind is typing.Literal:
        if content not in members:
            yield key, f"one of {', '.join(map(str, members))}", content
    elif dataclasses.is_dataclass(shape) or typing.is_typeddict(shape):
        yield from _fields(content, shape, key)
    elif kind in (dict, Mapping):
        if not isinstance(content, dict):
            yield key, _WORDS[dict], content
            return
        of_name, of_value = members or (str, Any)
        for name, value in content.items():
            if of_name is int and not name.isdecimal():
                yield key, "an object whose keys are whole numbers", name
            yield from _misfits(value, of_value, f"{key}.{name}", null)
    elif kind in (list, tuple, Sequence):
        fixed = kind is tuple and Ellipsis not in members
        if not isinstance(content, list) or (fixed and len(content) != len(members)):
            yield key, f"a list of {len(members)}" if fixed else _WORDS[list], content
            return
        of_each = members if fixed else [members[0]] * len(content)
        for place, (value, of_value) in enumerate(zip(content, of_each, strict=True)):
            yield from _misfits(value, of_value, f"{key}[{place}]", null)
    elif shape is not Any and not _is(content, shape, null):
        yield key, _WORDS[shape], content


def _fields(content: Any, shape: Any, key: str) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(content, dict):
        yield key, _WORDS[dict], content
        return
    if null := dataclasses.is_dataclass(shape):
        fields, none = dataclasses.fields(shape), dataclasses.MISSING
        needed = {each.name for each in fields if each.default is each.default_factory is none}
    else:
        needed = shape.__required_keys__
    for name, hint in typing.get_type_hints(shape).items():
        if name in content:
            yield from _misfits(content[name], hint, f"{key}.{name}", null)
        elif name in needed:
            yield f"{key}.{name}", "there", _NOWHERE


def _is(value: Any, kind: type, null: bool) -> bool:
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) or (null and value is None)
    return isinstance(value, kind)


def _short(value: Any) -> str:
    text = _WORDS.get(type(value), "") if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
