"""Solvers, linear solvers and adjoints are their options, which are checked when they are built.

A tolerance is a number for the whole state, or one for each of its leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from functools import cache
from typing import Any, Self, cast

from torch.utils import _pytree as pytree

from equilibria.solve.tree import describe
from equilibria.words import nearest

# What other libraries call options of ours, of which the first that a method has is meant.
_ELSEWHERE = {
    "tol": "rtol",
    "eps": "rtol",
    "abs_tol": "atol",
    "threshold": "max_evals",
    "max_iter": "max_evals",
    "max_iters": "max_evals",
    "max_steps": "max_evals",
    "m": "history",
    "beta": "damping",
    "lam": "ridge damping",
    "maxiter": "max_evals",
    "f_max_iter": "max_evals",
    "f_tol": "rtol",
    "tolerance": "rtol",
    "LBFGS_thres": "memory",
    "tau": "damping",
}


_OWN = __name__.partition(".")[0] + "."


def is_foreign(method: object) -> bool:
    """Is it a method of a user's own, so that what it returns is to be checked?"""
    return not type(method).__module__.startswith(_OWN)


CHECK = "check"


class Options:
    """A dataclass whose constructor says of an unknown option which one was meant, and checks those
    that are declared by `whole_field` and the like; None passes where the annotation has it."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        for name in options.keys() - _names(cls):
            if name in getattr(cls, "__annotations__", ()):
                raise TypeError(
                    f"{cls.__name__} has {name!r}, but not as an option: decorate the class with "
                    "@dataclass(frozen=True, kw_only=True)"
                )
            known = [each for each in _ELSEWHERE.get(name, "").split() if each in _names(cls)]
            meant = nearest((known or [name])[0], _names(cls)) if _names(cls) else ": it has none"
            if "linear" in _names(cls) and name in ("rtol", "atol", "max_evals", "error"):
                meant = (
                    f"; give it to the linear solver: {cls.__name__}(linear=eq.GMRES({name}=...))"
                )
            raise TypeError(f"{cls.__name__} has no option {name!r}{meant}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, check, may_be_none in _checks(type(self)):
            if (value := getattr(self, name)) is not None or not may_be_none:
                check(name_of(self, name), value)


@cache
def _names(cls: Any) -> frozenset[str]:
    return frozenset(each.name for each in fields(cls) if each.init)


@cache
def _checks(cls: Any) -> list[tuple[str, Callable[[str, Any], None], bool]]:
    """Options with their checks, and whether None passes. An option that a subclass declares anew,
    with a plain default, keeps the check of its base."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, each in base.__dict__.get("__dataclass_fields__", {}).items():
            if CHECK in each.metadata:
                found[name] = each.metadata[CHECK]
    return [
        (each.name, found[each.name], each.default is None or "None" in str(each.type))
        for each in fields(cls)
        if each.name in found
    ]


def name_of(owner: object, option: str) -> str:
    return f"{type(owner).__name__}({option}=...)"


_NEUTRAL = {"per_row": False, "atol": 0.0, "error": None}
"""Values of limits that ask for nothing, so that nothing is ignored."""


def refuse_ignored(owner: Any, option: str, limits: Iterable[str], remedy: str) -> None:
    """Raise ValueError for limits of the method in an option that ask for something.

    A limit asks for nothing if its value is neutral, or else the default of the library's class. A
    subclass of a user's own may declare another default, which would be ignored like an argument.

    Args:
        limits: those that `owner` does not heed.
        remedy: the rest of the message, in which `{limit}` and `{given}` are filled in.
    """
    method = getattr(owner, option)
    base = next(kind for kind in type(method).__mro__ if kind.__module__.startswith(_OWN))
    usual = {each.name: each.default for each in fields(base)} | _NEUTRAL
    for limit in limits:
        if (given := getattr(method, limit)) != usual[limit]:
            advice = remedy.format(limit=limit, given=given)
            text = f"{name_of(owner, option)}: {limit} = {given!r} would be ignored{advice}"
            raise ValueError(text)


def whole_field(default: Any, minimum: int) -> Any:
    """An option that is a whole number not below `minimum`."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: expected a whole number, got {value!r}")
        if value < minimum:
            raise ValueError(f"{name}: expected a whole number >= {minimum}, got {value}")

    return field(default=default, metadata={CHECK: check})


def number_field(default: Any, accepts: Callable[[float], bool], expected: str) -> Any:
    """An option that is a number which `accepts` takes; `expected` says which these are."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name}: expected a number, got {value!r}")
        if not accepts(value):
            raise ValueError(f"{name}: expected {expected}, got {value!r}")

    return field(default=default, metadata={CHECK: check})


def nonnegative_field(default: Any) -> Any:
    """An option that is a finite number >= 0."""
    return number_field(default, lambda x: 0 <= x < math.inf, "a finite number >= 0.0")


def instance_field(default: Any, kind: Any, expected: str) -> Any:
    """An option of a kind; `default` is one, None, or a function that makes one."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"{name}: expected {expected}, got {value!r}")

    given: Any = {"default_factory" if callable(default) else "default": default}
    return field(**given, metadata={CHECK: check})


def flag_field(default: bool) -> Any:
    """An option that is a bool."""
    return instance_field(default, bool, "a bool")


def damping_field(default: float) -> Any:
    """An option that is a number between 0 and 2, exclusive."""
    return number_field(default, lambda x: 0 < x < 2, "a number between 0 and 2 (1 is undamped)")


Tolerance = float | tuple[float, ...] | dict[str, float]
"""A number, or a tree of numbers that follows the tuples, lists and dicts of the state; a number in
place of a subtree holds for each leaf of it."""

Flat = float | tuple[float, ...]
"""The same for the leaves in order."""


def check_tolerance(name: str, given: Any) -> Tolerance:
    """Return a tolerance with tuples in place of lists.

    Raises:
        TypeError: what is given is neither a number nor a tree of numbers.
        ValueError: a number is negative or not finite, or there is none.
    """
    several: Any
    if isinstance(given, Mapping):
        pairs = cast("Mapping[Any, Any]", given).items()
        several = {str(key): check_tolerance(name, each) for key, each in pairs}
    elif isinstance(given, tuple | list):
        several = tuple(check_tolerance(name, each) for each in cast("Sequence[Any]", given))
    elif isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(
            f"{name}: expected a number, or one for each leaf of the state, got {given!r}"
        )
    elif not 0 <= given < math.inf:
        raise ValueError(f"{name}: expected a finite number >= 0.0, got {given!r}")
    else:
        return given
    if not several:
        raise ValueError(f"{name}: expected a number for each leaf of the state, got {given!r}")
    return several


def flatten_tolerance(name: str, given: Tolerance, state: Any) -> Flat:
    """Return a number as it is, and a tree as the numbers of the leaves of `state`, in order.

    Raises:
        ValueError: the tree is not that of the state.
    """
    return given if isinstance(given, int | float) else tuple(_spread(name, given, state))


def _spread(name: str, given: Any, state: Any) -> list[float]:
    if isinstance(given, int | float):
        return [given] * len(pytree.tree_leaves(state))
    mappings = isinstance(given, dict) and isinstance(state, dict)
    sequences = isinstance(given, tuple) and isinstance(state, tuple | list)
    numbers, parts = cast("tuple[Any, Any]", (given, state))
    keys: Any = parts if mappings else range(len(parts)) if sequences else ()
    if not keys or set(keys) != set(numbers if mappings else range(len(numbers))):
        raise ValueError(
            f"{name} is {given!r}, which does not follow the state, or a part of it, "
            f"{describe(state)}: give one number, or a tree of numbers like the state"
        )
    return [each for key in keys for each in _spread(name, numbers[key], parts[key])]


def finest(given: Tolerance) -> float:
    """The smallest number of a tolerance that is not 0; 0 where all are.

    In a tree, 0 stands for a leaf whose tolerance is not of this kind.
    """
    return min((each for each in pytree.tree_leaves(given) if each), default=0.0)


def coarsen(given: Tolerance, floor: float) -> Tolerance:
    """A relative tolerance with `floor` in place of smaller numbers but 0, which nothing meets."""

    def raise_to_floor(each: float) -> float:
        return max(each, floor) if each else each

    return pytree.tree_map(raise_to_floor, given)


def length_of(atol: Flat, entries: Sequence[int]) -> float:
    """The Euclidean length of a state of so many entries a leaf whose RMS is `atol`, or is that of
    its own number in each leaf."""
    if isinstance(atol, tuple):
        return math.sqrt(sum(a * a * n for a, n in zip(atol, entries, strict=True)))
    return atol * math.sqrt(sum(entries))


def of_leaf(given: Flat, leaf: int) -> float:
    """The number that holds for a leaf."""
    return given[leaf] if isinstance(given, tuple) else given
