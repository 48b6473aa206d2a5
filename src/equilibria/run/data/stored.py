"""JSON files of a run folder, which may be a stranger's: regular, of a limited size, of one shape.

A shape is a type as annotations have it: a TypedDict or a dataclass for an object, or one that is
made of list, tuple, dict, unions, Literal, str, int, float, bool and None. A float of
a dataclass may be null, as one is written that is not finite. Keys that a shape does not name may
hold anything.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equilibria import files
from equilibria.run.data.regular import read_bytes

__all__ = ["check", "parse", "read"]

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
        needed = {f.name for f in dataclasses.fields(shape) if _has_no_default(f)}
    else:
        needed = shape.__required_keys__
    for name, hint in typing.get_type_hints(shape).items():
        if name in content:
            yield from _misfits(content[name], hint, f"{key}.{name}", null)
        elif name in needed:
            yield f"{key}.{name}", "there", _NOWHERE


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _is(value: Any, kind: type, null: bool) -> bool:
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) or (null and value is None)
    return isinstance(value, kind)


def _short(value: Any) -> str:
    text = _WORDS.get(type(value), "") if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
