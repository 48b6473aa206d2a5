"""What every view of a study's rows can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from equilibria.run.report.panel import Panel
from equilibria.run.report.surfaces import SurfacePlot
from equilibria.run.studies.data import Data, Frame
from equilibria.run.studies.views.tables import Grid

__all__ = ["Derived", "View"]


class View(Protocol):
    """A table or a chart of a study's rows."""

    def render(self, data: Data, /) -> Grid | Panel | SurfacePlot:
        """Render it from what was measured, possibly nothing."""
        ...


@dataclass(frozen=True)
class Derived:
    """A view of rows to which columns are added, such as the ratio to another row.

    Args:
        derive: measured rows -> those that the view shows.
        view: a table or a chart.
    """

    derive: Callable[[Data], Frame]
    view: View

    def render(self, data: Data, /) -> Grid | Panel | SurfacePlot:
        """Render the view."""
        return self.view.render(replace(data, rows=self.derive(data)))
