"""Views of a study's rows: tables and charts, described by which columns they show."""

from equilibria.run.studies.views.charts import Bars, Chart, Lines, curve
from equilibria.run.studies.views.columns import (
    DIVERGED,
    NOT_RUN,
    Cell,
    count,
    first,
    largest,
    last,
    mean,
    mean_and_deviation,
    median,
    of,
    ratio,
    smallest,
    spread,
    time_ratio,
)
from equilibria.run.studies.views.tables import Grid, Pivot, Table, text
from equilibria.run.studies.views.view import Derived, View

__all__ = [
    "DIVERGED",
    "NOT_RUN",
    "Bars",
    "Cell",
    "Chart",
    "Derived",
    "Grid",
    "Lines",
    "Pivot",
    "Table",
    "View",
    "count",
    "curve",
    "first",
    "largest",
    "last",
    "mean",
    "mean_and_deviation",
    "median",
    "of",
    "ratio",
    "smallest",
    "spread",
    "text",
    "time_ratio",
]
