"""Recipe keys for checkpointing, and their former names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

from equilibria.train.config import ConfigError

__all__ = ["Checkpointing", "formerly", "renewed"]

_Class = TypeVar("_Class", bound=type)

MOVED = {"save_every": "every", "keep": "keep"}
"""Former recipe keys, and their present names under `checkpoint`."""


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When and how checkpoints are written.

    Args:
        every: steps between checkpoints; null for one at the end of each epoch only.
        keep: number of checkpoints to keep: if the newest is damaged, a run resumes from the
            previous one.
        async_: write while training continues, from a copy in CPU memory. The key is `async`. The
            weights and the checkpoint of an epoch then appear a little later.
    """

    every: int | None = None
    keep: int = 2
    async_: bool = False

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")


def formerly(cls: _Class) -> _Class:
    """Let a dataclass with a field `checkpoint` take the keywords of `MOVED` too, with a warning.

    They stand for fields of `checkpoint` and override these, so that `dataclasses.replace`, which
    hands over all fields, takes them too.
    """
    changed: Any = cls
    build = changed.__init__

    @wraps(build)
    def init(self: Any, /, **given: Any) -> None:
        former = {new: given.pop(old) for old, new in MOVED.items() if old in given}
        if former:
            _warn(2)
            given["checkpoint"] = replace(given.get("checkpoint") or Checkpointing(), **former)
        build(self, **given)

    changed.__init__ = init
    return cls


def _warn(level: int) -> None:
    warnings.warn(
        "the keys save_every and keep of a recipe are deprecated: use checkpoint.every and "
        "checkpoint.keep",
        DeprecationWarning,
        stacklevel=level + 1,
    )


def renewed(tree: Mapping[str, Any], argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a recipe and its options with former keys moved to `checkpoint`, and warn about them.

    Args:
        tree: nested mapping, as YAML gives it.
        argv: options for keys of the recipe.

    Raises:
        ConfigError: a former key and its replacement are both given.
    """
    found = {key: value for key, value in tree.items() if key not in MOVED}
    former = {new: tree[old] for old, new in MOVED.items() if old in tree}
    if former:
        known = found.get("checkpoint") or {}
        if both := former.keys() & known:
            raise ConfigError(f"checkpoint.{min(both)} is given twice, once by its former name")
        found["checkpoint"] = {**known, **former}
    words = list(argv)
    given = {word.partition("=")[0] for word in words}
    for place, word in enumerate(words):
        key, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and (new := MOVED.get(key.replace("-", "_"))) is not None:
            if f"--checkpoint.{new}" in given:
                raise ConfigError(f"checkpoint.{new} is given twice, once by its former name")
            words[place] = f"--checkpoint.{new}{equals}{value}"
    moved = [old for old in MOVED if old in tree] or words != list(argv)
    if moved:
        _warn(3)
    return found, words
