"""Views of a study's rows: tables and charts, described by which columns they show."""

# ruff: noqa: F401 - what studies import, in one place

from equilibria.run.studies.views.charts import Bars, Chart, Lines, curve
from equilibria.run.studies.views.tables import (
    DIVERGED,
    NOT_RUN,
    Cell,
    Derived,
    Grid,
    Pivot,
    Table,
    View,
    count,
    first,
    largest,
    last,
    mean,
    mean_and_deviation,
    median,
    number,
    of,
    ratio,
    smallest,
    spread,
    text,
    time_ratio,
)
