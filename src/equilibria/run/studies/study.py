"""A study: a grid of points to measure, and views of the resulting rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.console import Console

from equilibria.run.recipe import Recipe
from equilibria.run.studies.training import Trained, Training
from equilibria.run.studies.views import View
from equilibria.run.tasks import Task

Scale = Literal["cpu", "gpu"]
"""Size of the recipes: minutes on two CPU cores, or on one GPU."""

Factor = str | int | float | bool
"""A coordinate of a point."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a measure works with.

    Attributes:
        factors: coordinates of the point.
        runs: its trainings, finished, by the names that the point gives them.
        reads: further recipes that the point names.
        tasks: loads the task of a recipe, once for all points.
        console: for progress messages.
        device: torch's name of the device to measure on.
    """

    factors: Mapping[str, Factor]
    runs: Mapping[str, Trained]
    tasks: Callable[[Recipe], Task]
    console: Console
    reads: Sequence[Recipe] = ()
    device: str = "cpu"

    @property
    def run(self) -> Trained:
        """The training of a point that has one."""
        (only,) = self.runs.values()
        return only


Row = Mapping[str, Any]

Measure = Callable[[Context], Row | Iterable[Row]]
"""Measures columns of a point, in one row of figures that hold for the point as a whole, or in
several rows, such as one for each epoch. Figures are numbers, strings or None; NaN and infinity are
kept."""


@dataclass(frozen=True)
class Point:
    """One point of a study's grid: measured once, kept as rows of the study's table.

    Args:
        factors: its coordinates, unique within the study.
        measures: what is measured, in order; those that return one row share the point's first.
        runs: trainings that they use, by name; several points and studies share them.
        reads: recipes whose data or models are measured without a training.
        settings: anything else that determines the result, as JSON.
        minutes: estimate, without the trainings.
        description: what is done, for the progress line; None for the factors.
    """

    factors: Mapping[str, Factor]
    measures: Sequence[Measure]
    runs: Mapping[str, Training] = field(default_factory=dict)
    reads: Sequence[Recipe] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    minutes: float = 0.1
    description: str | None = None

    @property
    def label(self) -> str:
        """The factors in one line, such as `cell=transformer seed=0`."""
        return " ".join(f"{name}={value}" for name, value in self.factors.items())


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or a figure of a paper, or a benchmark.

    Args:
        paper: authors and year, by default `PAPER` of the package in which it is; empty for a
            benchmark of our own.
        item: the tables and figures of the paper.
        title: heading of its page.
        description: what it shows, in one sentence; by default the first paragraph of the file's
            docstring.
        points: the grid at a scale, in the order of the tables.
        views: tables and charts of the rows.
        note: what a reader must know about all of them; by default the rest of the docstring.
        peers: other packages whose version is recorded with the figures.
        rows_of: name of the study whose rows it shows, if it has no CSV file of its own.
        own: returns the study with a class of a user's own among its contestants, `module:Class` of
            a module that has been imported; ValueError where it cannot take part.
    """

    paper: str | None = None
    item: str = ""
    title: str
    description: str = ""
    points: Callable[[Scale], Sequence[Point]]
    views: Sequence[View]
    note: str = ""
    peers: Sequence[str] = ()
    rows_of: str = ""
    own: Callable[[str], Study] | None = None

    def described_by(self, text: str, paper: str) -> Study:
        """Return it with what it leaves to a docstring and to the package.

        Args:
            text: the docstring of its file.
            paper: of the package.
        """
        description, _, note = (part.replace("\n", " ") for part in text.partition("\n\n"))
        found = (
            self
            if self.description
            else replace(self, description=description, note=self.note or note)
        )
        return found if self.paper is not None else replace(found, paper=paper)


class StudyError(RuntimeError):
    """A study that cannot be run; the message says why."""


def grid(**axes: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the product of the axes, the last varying fastest, as one dict per point."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
