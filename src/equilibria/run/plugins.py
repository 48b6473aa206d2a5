"""Solvers, linear solvers and adjoints of a user's own, which a recipe names as `module:Class`.

No file runs code, be it a recipe or in a run folder: a class that it names is looked for in modules
that have been imported, by `--import` or by the program that reads the file. A name that is typed
on the command line imports its module.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
import traceback
import types
import typing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from equilibria import solve
from equilibria.solve import Adjoint, LinearSolver, Solver
from equilibria.words import nearest

BASES = (Solver, LinearSolver, Adjoint)
"""What can be of a user's own."""

LOADED: dict[str, type] = {}
"""The classes that recipes have named in this process, by `path_of`."""


def bases_of(kinds: tuple[type, ...]) -> tuple[type, ...]:
    """Return those of some classes that a class of a user's own may derive from."""
    return tuple(each for each in kinds if each in BASES)


def is_path(name: object) -> bool:
    """Return whether a name in a recipe is of the form `module:Class`."""
    return isinstance(name, str) and ":" in name


def path_of(cls: type) -> str:
    """Return what a recipe calls a class of a user's own.

    Raises:
        ValueError: no recipe can name it, or hold its options.
    """
    path = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__qualname__ != cls.__name__:
        raise ValueError(
            f"{path} is defined inside of another definition, where no recipe finds it: define it "
            "at the top level of a module"
        )
    _check(cls, path)
    return path


def import_module_of(path: str) -> None:
    """Import the module of a class that the user has named himself.

    Raises:
        ValueError: it cannot be imported.
    """
    module = path.partition(":")[0]
    try:
        importlib.import_module(module)
    except Exception as error:
        said = f"{module} cannot be imported ({type(error).__name__}: {error})"
        if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or " "):
            said += ": install it, or add the folder that holds it to PYTHONPATH"
        raise ValueError(said) from error


def find(path: str, bases: tuple[type, ...]) -> type:
    """Return the class of a module that has been imported.

    Args:
        path: its name, `module:Class`.
        bases: of `BASES`, those that it may derive from.

    Raises:
        ValueError: its module has not been imported, or does not have such a class.
    """
    module, _, name = path.partition(":")
    if module not in sys.modules:
        own = f"{module.removeprefix('own_')}.py" if module.startswith("own_") else module
        raise ValueError(
            f"{path} is not part of equilibria, and no file may run code of others: if you trust "
            f"{own}, add --import {own}{'' if own != module else f' (in Python: import {module})'}"
        )
    content = vars(sys.modules[module])
    kinds = " or ".join(f"eq.{base.__name__}" for base in bases)
    if name not in content:
        known = [n for n, each in content.items() if _derives(each, bases) and each not in bases]
        other = nearest(name, known) if known else f", nor any other {kinds}"
        raise ValueError(f"{module} has no class '{name}'{other}")
    cls = content[name]
    if not _derives(cls, bases):
        raise ValueError(f"{path} is not a subclass of {kinds}: derive the class from it")
    _check(cls, path)
    return cls


def build(path: str, bases: tuple[type, ...]) -> Any:
    """Return what a class of a user's own makes with its defaults.

    Args:
        path, bases: as `find` takes them.

    Raises:
        ValueError: there is no such class, or an option of it has no default.
    """
    cls: Any = find(path, bases)
    for each in dataclasses.fields(cls):
        if each.init and each.default is each.default_factory is dataclasses.MISSING:
            raise ValueError(f"{path}: the option '{each.name}' has no default: give it one")
    return cls()


def _derives(value: Any, bases: tuple[type, ...]) -> bool:
    return isinstance(value, type) and issubclass(value, bases)


def _check(cls: Any, path: str) -> None:
    """Raise ValueError if a recipe cannot build a class, or hold its options."""
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ValueError(f"{path} has no method {missing[0]}: define it (see docs/plugins.md)")
    own = [
        name for name, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)
    ]
    known = {field.name for field in dataclasses.fields(cls)}
    if lacking := [name for name in own if name not in known]:
        raise ValueError(
            f"{path} has an attribute '{lacking[0]}' that is not an option: decorate the class "
            "with @dataclass(frozen=True, kw_only=True)"
        )
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:
        raise ValueError(f"{path}: the type of an option cannot be read ({error})") from error
    inherited = {
        f.name for base in BASES if issubclass(cls, base) for f in dataclasses.fields(base)
    }
    for name in known - inherited:
        if name == "name" or not _fits(hints[name]):
            raise ValueError(
                f"{path}: a recipe cannot hold the option '{name}' of type {hints[name]}: give it "
                "another name, or a type made of int, float, bool, str, None, Literal, list, "
                f"tuple, dict, {', '.join(f'eq.{base.__name__}' for base in BASES)}"
            )


def _fits(hint: Any) -> bool:
    """Whether a recipe can hold an option of a type. None of these types imports code."""
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType, list, tuple, dict):
        return all(each is ... or _fits(each) for each in members)
    plain = hint in (int, float, bool, str, types.NoneType) or origin is typing.Literal
    return plain or _derives(hint, BASES)


# --- own ------------------------------------------------------------------------------------------

# Python files of a user's own, imported by their path.


class ImportFailed(Exception):
    """A user's file or module cannot be imported; the message gives file, line and reason."""


def import_files(path: str | Path, prefix: str) -> ModuleType:
    """Execute a Python file and return it as the module `prefix` + its stem.

    Args:
        path: of the file.
        prefix: of the module's name, under which `sys.modules` has it.

    Raises:
        ImportFailed: there is no such file, or it raised an error.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise ImportFailed(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"{prefix}{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else "?"
        raise ImportFailed(f"{file}, line {line}: {type(error).__name__}: {error}") from error
    return module


# --- solvers --------------------------------------------------------------------------------------

# A solver chosen for prediction, in place of the one that a network was trained with.


SOLVERS = ("Auto", "Anderson", "Broyden", "Picard", "NewtonKrylov")
"""Solvers by name."""


def change_solver(
    solver: Solver,
    name: str | None = None,
    rtol: float | None = None,
    max_evals: int | None = None,
) -> Solver:
    """Return a solver under other limits, or another one under the same limits.

    Args:
        solver: to begin with.
        name: one of `SOLVERS`, or `module:Class` of a module that is imported; None for the same
            method.
        rtol: relative tolerance; None for no change.
        max_evals: evaluations, at most; None for no change.

    Raises:
        ValueError: there is no such class, or its module is not imported.
    """
    if name is not None:
        own = is_path(name)
        method = find(name, (Solver,)) if own else getattr(solve, name)
        solver = solver if method is type(solver) else method(**solver.limits)
    given = {"rtol": rtol, "max_evals": max_evals}
    return replace(solver, **{key: value for key, value in given.items() if value is not None})
