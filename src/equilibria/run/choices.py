"""The classes that a recipe may name, imported when it names them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from equilibria.run.registry import defines, find_imported, resolve


@dataclass(frozen=True)
class Choices:
    """Every class that a recipe may name.

    Attributes:
        entries: The name of each in recipes; the base class, or its place, of the fields that hold
            it (None: any of its own bases); and the class, or its place.
    """

    entries: tuple[tuple[str, Any, Any], ...]

    @functools.cached_property
    def _places(self) -> frozenset[str]:
        """The places of base classes: each may be imported at any time."""
        return frozenset(base for _, base, _ in self.entries if isinstance(base, str))

    def and_these(self, classes: Mapping[str, type]) -> Choices:
        """Return these choices and some classes by name."""
        return Choices((*self.entries, *((name, None, cls) for name, cls in classes.items())))

    def classes_for(self, bases: tuple[type, ...]) -> Allowed:
        """Return the classes that a field annotated with any of `bases` may hold."""
        imported = frozenset(place for place in self._places if find_imported(place))
        return _classes_for(self, bases, imported)

    def name_of(self, cls: type) -> str | None:
        """Return the name of a class in recipes; None if it has none."""
        return next((name for name, _, place in self.entries if defines(place, cls)), None)

    def list_imported(self) -> list[type]:
        """Return the classes whose modules have been imported."""
        found = (find_imported(place) for _, _, place in self.entries)
        return [cls for cls in found if cls is not None]

    def __getitem__(self, name: str) -> type:
        return next(resolve(place) for known, _, place in reversed(self.entries) if known == name)


class Allowed(Mapping[str, type]):
    """Classes by their names in recipes, each imported when it is looked up."""

    def __init__(self, places: Mapping[str, Any]) -> None:
        self._places = dict(places)

    def __getitem__(self, name: str) -> type:
        return resolve(self._places[name])

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def name_of(self, cls: type) -> str | None:
        """Return the name of a class; None if it has none."""
        return next((name for name, place in self._places.items() if defines(place, cls)), None)

    def list_imported(self) -> dict[str, type]:
        """Return the classes whose modules have been imported, by name."""
        found = {name: find_imported(place) for name, place in self._places.items()}
        return {name: cls for name, cls in found.items() if cls is not None}

    def with_class(self, name: str, cls: type) -> Allowed:
        """Return these classes and another one."""
        return Allowed({**self._places, name: cls})


@functools.cache
def _classes_for(choices: Choices, bases: tuple[type, ...], imported: frozenset[Any]) -> Allowed:
    return Allowed(
        {name: place for name, base, place in choices.entries if _fits(base, place, bases)}
    )


def _fits(base: Any, place: Any, bases: tuple[type, ...]) -> bool:
    """Whether a field annotated with `bases`, whose modules are imported, may hold a class."""
    known = place if base is None else find_imported(base)
    return bool(bases) and isinstance(known, type) and issubclass(known, bases)
