"""What determines a result, as one short checksum."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from equilibria.run import plugins
from equilibria.run import recipe as recipes
from equilibria.run.recipe import Recipe

GENERATION = 3
"""Of the core: raised when a change of it changes results beyond rounding. 1 is all that was
measured before generations were counted."""

FILES = f"{__package__}.files."
"""Prefix of the modules of a user's own files."""


def digest(content: Any, generation: int = 1) -> str:
    """Return a checksum of what JSON can hold, of 16 digits.

    Args:
        content: what is identified.
        generation: of the core that measures it. The first is not part of the checksum, so that
            rows from before generations were counted keep their identities.
    """
    content = content if generation == 1 else [generation, content]
    text = json.dumps(content, sort_keys=True, default=_plain, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


F = TypeVar("F", bound=Callable[..., Any])

_FORMER = "identified_as"


def identified_as(name: str) -> Callable[[F], F]:
    """Keep the name that a function has in checksums, wherever it moves, and its rows with it.

    Without it, the name is that of its file and its own: `growth.measure`.

    Args:
        name: that it had when rows were measured.
    """

    def mark(function: F) -> F:
        setattr(function, _FORMER, name)
        return function

    return mark


def decides(recipe: Recipe) -> dict[str, Any]:
    """Return the keys of a recipe that determine its result, with every default filled in.

    Changing a default changes the checksum; changing a description does not. Of solvers of a user's
    own, the code of their modules counts.
    """
    tree = _as_measured(recipes.decisive(recipe))
    code = [inspect.getsource(sys.modules[name]) for name in sorted(_modules(tree))]
    return {**tree, "code": code} if code else tree


def _modules(tree: Any) -> set[str]:
    """The modules of the classes of a user's own that a recipe names."""
    if isinstance(tree, Mapping):
        name = tree.get("name")
        own = {str(name).partition(":")[0]} if plugins.is_path(name) else set[str]()
        return own.union(*map(_modules, tree.values()))
    return set()


_GONE = {"Implicit": dict.fromkeys(recipes.GONE)}
"""Fields that a method had when rows were measured: they stay in the checksums of these."""


_LATER = ("error",)
"""Fields that methods have got since: as None they are left out of the checksums."""


def _as_measured(tree: dict[str, Any]) -> dict[str, Any]:
    tree = _without_later(tree)
    adjoint = tree.get("adjoint") or {}
    gone = _GONE.get(adjoint.get("name", ""), {})
    return {**tree, "adjoint": {**adjoint, **gone}} if gone else tree


def _without_later(tree: Any) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    kept = cast("Mapping[str, Any]", tree).items()
    return {k: _without_later(x) for k, x in kept if not (k in _LATER and x is None)}


def _plain(value: Any) -> Any:
    """Solvers, adjoints and probes by name and fields, other objects by where they are defined."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        fields = _without_later(fields)
        name = type(value).__qualname__
        return {"": name + _code(type(value)), **fields, **_GONE.get(name, {})}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | range):
        return sorted(value)
    if isinstance(value, functools.partial):
        return [_plain(value.func), value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [_plain(value.__func__), value.__self__]
    if hasattr(value, _FORMER):
        return getattr(value, _FORMER)
    plain = inspect.unwrap(value) if callable(value) else None  # of a decorator such as no_grad
    name = getattr(plain, "__qualname__", "")
    if name and not name.endswith("<lambda>") and not getattr(plain, "__closure__", None):
        return f"{value.__module__.rpartition('.')[2]}.{name}{_code(plain)}"
    raise TypeError(
        f"{value!r} cannot be part of an identity: give numbers, strings, dataclasses, or a named "
        "function; pass what it closes over as arguments of functools.partial"
    )


def _code(defined: Any) -> str:
    """The code of what a user's file defines: no commit of the package tells when it changes."""
    return inspect.getsource(defined) if defined.__module__.startswith(FILES) else ""
