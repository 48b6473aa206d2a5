"""What applications offer, by name: models, data sets, tasks, commands, and parts of them.

An application is a package that describes itself by an `Application` in its ``__init__``, called
``APPLICATION``. Everything in it is a string ``"module:name"``, resolved when it is asked for: to
list the names costs no import of what is behind them. The applications that come with equilibria
are the packages in `equilibria.zoo`; another distribution adds its own by an entry point:

    [project.entry-points."equilibria.applications"]
    weather = "my_package.weather"
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "equilibria.applications"
"""The group of entry points by which other distributions add applications."""

_Result = TypeVar("_Result")

Section = Literal[
    "models", "data", "folders", "tasks", "classes", "commands", "galleries", "options"
]


_lock = threading.RLock()


def _once(function: Callable[[], _Result]) -> Callable[[], _Result]:
    """Call a function once, whichever thread comes first, and keep what it returns."""
    kept: list[_Result] = []

    @functools.wraps(function)
    def call() -> _Result:
        if not kept:
            with _lock:
                if not kept:
                    kept.append(function())
        return kept[0]

    return call


@dataclass(frozen=True, kw_only=True)
class Application:
    """What one application offers, each by the name that users give it.

    Every place is ``"module:name"`` of a definition, in the module that defines it; a module whose
    name begins with a dot is in the application's package.

    Attributes:
        package: Name of the application's package, whose folder ``recipes`` holds its recipes.
        models: Configs of models (`ModelConfig`).
        data: Data sets (`Entry`), by the type that their readers return.
        tasks: Configs of tasks (`TaskConfig`).
        folders: What reads a user's own files (`UserData`), by the type that it gives.
        classes: Other classes that recipes may name, such as solvers made for the application's
            models, by the base class that a field of a recipe is annotated with.
        commands: Commands: one line for ``equilibria --help``, and the module that has ``main``.
        galleries: What is drawn of samples, by the name that a task gives (`Task.gallery`).
        options: Options that the application adds to a command of the frame, by the command and a
            name of its own: "evaluate.views"; see `equilibria.run.cli.options`.
    """

    package: str
    models: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    galleries: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


@_once
def applications() -> tuple[Application, ...]:
    """Return all applications: those in `equilibria.zoo`, then those of other distributions.

    One of another distribution that cannot be imported, or is none, is left out with a warning.
    """
    names: tuple[str, ...] = importlib.import_module("equilibria.zoo").APPLICATIONS
    own = (importlib.import_module(f"equilibria.zoo.{name}") for name in names)
    found: list[Application] = [module.APPLICATION for module in own]
    for point in _entry_points():
        try:
            front = point.load()
            found.append(_check_application(getattr(front, "APPLICATION", front)))
        except Exception as error:
            warnings.warn(
                f"the application {point.name} = {point.value} of another distribution is left "
                f"out: {type(error).__name__}: {error}",
                stacklevel=2,
            )
    return tuple(found)


def _check_application(front: Any) -> Application:
    if not isinstance(front, Application):
        raise TypeError(
            f"the entry point of {GROUP} must name a package whose __init__ defines APPLICATION, "
            "an equilibria.run.registry.Application"
        )
    return front


def package_of(name: str) -> str | None:
    """Return the package of the application that is called `name`; None if there is none."""
    packages = (each.package for each in applications())
    return next((each for each in packages if each.rpartition(".")[2] == name), None)


def import_part(front: str, name: str, part: str) -> ModuleType:
    """Return a part of the application `name`, asked for as an attribute of a room's front.

    Args:
        front: Full name of the front, such as ``equilibria.run.data``.
        name: Of the attribute.
        part: Of the application's package, such as ``data``.

    Raises:
        AttributeError: There is no such application, or it has no such part.
    """
    own = name.startswith("_") or find_spec(f"{front}.{name}")  # an import looks here first
    package = None if own else package_of(name)
    if package is None or find_spec(f"{package}.{part}") is None:
        raise AttributeError(f"module {front!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{part}")


def places(application: Application, section: Section) -> list[str]:
    """Return the places that an application registers in a section, with full names of modules."""
    found = [item for _, item in _items(application, section)]
    return [item if isinstance(item, str) else item[1] for item in found]


def _entry_points() -> Iterable[EntryPoint]:
    """Return the entry points by which other distributions add applications.

    Where no distribution names the group, importlib.metadata is not imported: that takes as long as
    all the rest of `equilibria --help`.
    """
    if not any(map(_may_add, sys.path)):
        return ()
    from importlib import metadata

    return metadata.entry_points(group=GROUP)


def _may_add(place: str) -> bool:
    """Return whether distributions in a folder or an archive of Python's path name the group."""
    if os.path.isfile(place):
        return True  # an archive, which only importlib.metadata reads
    with suppress(OSError), os.scandir(place or ".") as inside:
        for each in inside:
            if each.name.endswith((".dist-info", ".egg-info")):
                points = os.path.join(each.path, "entry_points.txt")
                with suppress(OSError), open(points, "rb") as file:
                    if GROUP.encode() in file.read():
                        return True
    return False


def find(section: Section) -> dict[str, Any]:
    """Return what all applications register in one section, by name.

    The dictionary is the registry itself: what is added to it is found by name, too. In the
    sections `data` and `classes`, whose names are grouped, an item is the group and the place. Of
    two applications that use one name the first has it, and a warning names both.
    """
    return _sections()[section]


@_once
def _sections() -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for section in get_args(Section):
        found: dict[str, Any] = {}
        owners: dict[str, str] = {}
        for application in applications():
            for name, item in _items(application, section):
                if keep_first(name, owners, application, section):
                    found[name] = item
        sections[section] = found
    return sections


def keep_first(name: str, owners: dict[str, str], application: Application, what: str) -> bool:
    """Return whether no other application has a name, which is this application's from now on.

    Args:
        name: That the application uses.
        owners: The packages of the names so far; the name is added.
        application: That uses the name.
        what: It is a name of, for the warning that a name is taken.
    """
    owner = owners.setdefault(name, application.package)
    if owner != application.package:
        warnings.warn(
            f"'{name}' in {what} is that of {owner}: {application.package}, which uses the name "
            "too, has to choose another one",
            stacklevel=3,
        )
    return owner == application.package


def _items(application: Application, section: Section) -> Iterator[tuple[str, Any]]:
    def full(place: str) -> str:
        return f"{application.package}{place}" if place.startswith(".") else place

    for key, item in getattr(application, section).items():
        if section in ("data", "classes"):
            yield from ((name, (full(key), full(place))) for name, place in item.items())
        elif section == "commands":
            yield key, (item[0], full(item[1]))
        elif section == "folders":
            yield full(key), full(item)
        else:
            yield key, full(item)


def resolve(place: Any) -> Any:
    """Return what a place ``"module:name"`` names; anything else is returned as it is."""
    return pkgutil.resolve_name(place) if isinstance(place, str) else place


def find_imported(place: Any) -> type | None:
    """Return the class at a place ``"module:name"`` if its module has been imported, else None."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(sys.modules[module], name, None) if module in sys.modules else None


def place_of(cls: type) -> str:
    """Return the place ``"module:name"`` at which a class is defined."""
    return f"{cls.__module__}:{cls.__qualname__}"


def defines(place: Any, cls: type) -> bool:
    """Return whether a registered place is `cls`, without importing its module."""
    return place is cls or place == place_of(cls) or find_imported(place) is cls
