"""An experiment: the cases that it measures, and what it shows of those that are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Results
from equilibria.experiments.draw import Panel
from equilibria.experiments.relief import Relief

__all__ = ["NOT_RUN", "Experiment", "Page", "Scale"]

Scale = Literal["cpu", "gpu"]
"""Which size of the recipes: for minutes on two CPU cores, or for one GPU."""

NOT_RUN = "not run"
"""Stands in a table for a figure of ours that its command has not measured yet."""


@dataclass(frozen=True)
class Page:
    """What an experiment shows: tables for the terminal and the JSON, panels for the figure."""

    tables: Sequence[Table]
    panels: Sequence[Panel | Relief] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or a figure of a paper.

    Args:
        name: paper and subject, such as `deq/growth`.
        paper: authors and year.
        subject: the table or the figure of the paper.
        description: what it shows, in a sentence.
        cases: what is measured at a scale, in order, shared trainings before what needs them.
        show: draws up the page from the cases that are done, be it none.
    """

    name: str
    paper: str
    subject: str
    description: str
    cases: Callable[[Scale], Sequence[Case]]
    show: Callable[[Results], Page]

    @property
    def file(self) -> str:
        """Name of its JSON and its figure, without the suffix."""
        return self.name.replace("/", "-")
