"""Public names that have moved, kept for one version."""

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def aliases(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that finds old names in their new place, with a warning.

        __getattr__ = aliases(__name__, {"Old": "equilibria.nn.New"})

    Args:
        module: the module that has lost the names.
        names: where each old name is now, in full.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].rpartition(".")
        warnings.warn(
            f"{module}.{name} is deprecated: use {names[name]}", DeprecationWarning, stacklevel=2
        )
        return getattr(importlib.import_module(place), new)

    return find


def keyword(
    old: str, new: str, convert: Callable[[Any], Any] = lambda value: value
) -> Callable[[_Function], _Function]:
    """Return a decorator of a function that still takes a keyword by its old name, with a warning.

    Args:
        old: its name before.
        new: its name now.
        convert: makes of an old value what the new keyword takes.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                name = function.__qualname__
                if new in kwargs:
                    raise TypeError(f"{name}() got both {new} and {old}, its old name: use {new}")
                message = f"{name}({old}=...) is deprecated: use {new}"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                kwargs[new] = convert(kwargs.pop(old))
            return function(*args, **kwargs)

        return cast(_Function, call)

    return decorate
