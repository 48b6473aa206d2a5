"""Solvers, linear solvers and adjoints are their options: what is checked when they are built."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

from equilibria.words import nearest

# What other libraries call an option of ours.
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
    "lam": "damping",
    "tau": "damping",
}


class Options:
    """A dataclass whose constructor says of an unknown option which one was meant."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        known: Any = cls
        names = [each.name for each in fields(known) if each.init]
        for name in options:
            if name not in names:
                meant = _ELSEWHERE.get(name, name)
                meant = nearest(meant if meant in names else name, names)
                raise TypeError(f"{cls.__name__} has no option {name!r}{meant}")
        return object.__new__(cls)


def name_of(owner: object, field: str) -> str:
    return f"{type(owner).__name__}({field}=...)"


def check_at_least(owner: object, field: str, minimum: float) -> None:
    """Raise unless an option is a finite number not below `minimum`."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name_of(owner, field)}: expected a number, got {value!r}")
    if not (value >= minimum and value != float("inf")):
        raise ValueError(
            f"{name_of(owner, field)}: expected a finite number >= {minimum}, got {value!r}"
        )


def check_whole(owner: object, field: str, minimum: int) -> None:
    """Raise unless an option is a whole number not below `minimum`."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name_of(owner, field)}: expected a whole number, got {value!r}")
    if value < minimum:
        raise ValueError(
            f"{name_of(owner, field)}: expected a whole number >= {minimum}, got {value}"
        )


def check_damping(owner: object) -> None:
    """Raise unless the option `damping` is a number between 0 and 2, exclusive."""
    value = getattr(owner, "damping")  # noqa: B009
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name_of(owner, 'damping')}: expected a number, got {value!r}")
    if not 0 < value < 2:
        raise ValueError(
            f"{name_of(owner, 'damping')}: expected a number between 0 and 2 (1 is undamped), "
            f"got {value!r}"
        )
