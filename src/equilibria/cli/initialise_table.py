"""The words and the table of `equilibria initialise`."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.table import Table

from equilibria.stability.ensembles import Recommendation, Start, Sweep
from equilibria.stability.ensembles.choice import HELD

__all__ = ["show", "subject", "table"]


def show(console: Console, found: Sweep, advice: Recommendation, command: str | None) -> None:
    """Print the table and the recommendation."""
    head, rows = table(found, whole=False)
    grid = Table(
        title=subject(found),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place, column in enumerate(head):  # ensembles are names that --ensembles takes
        justify = "right" if place else "left"
        grid.add_column(column, justify=justify, overflow="fold", no_wrap=not place)
    chosen = (advice.ensemble, f"{advice.scale:g}")
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        best = advice.workable and (row[0], row[1]) == chosen
        ends = after is not None and after[0] != row[0]
        grid.add_row(*row, style="bold green" if best else None, end_section=ends)
    console.print(grid)
    style = "bold" if advice.workable else "bold yellow"
    console.print(advice.reasons[0], style=style, markup=False, highlight=False)
    console.print(" ".join(advice.reasons[1:]), markup=False, highlight=False)
    for remark in advice.remarks:
        console.print(f"- {remark}", markup=False, highlight=False)
    if command is not None:
        console.print(f"To train: {command}", soft_wrap=True, markup=False, highlight=False)


def subject(found: Sweep) -> str:
    """Return what was measured, and how."""
    maps = "one map" if found.maps == 1 else f"{found.maps} maps"
    return (
        f"{found.samples} samples of {found.entries} entries, {maps}; {found.solver} and plain "
        f"iteration to {found.rtol:g} within {found.max_evals} evaluations"
    )


def table(found: Sweep, *, whole: bool = True) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table: a row for each ensemble and scale.

    Figures at fixed points are a dash where too few samples converge.

    Args:
        found: what was measured.
        whole: all columns, or only as many as fit on a terminal.
    """
    columns: list[tuple[str, Callable[[Start], str]]] = [
        ("ensemble", lambda start: start.ensemble),
        ("scale", lambda start: f"{start.scale:g}"),
    ]
    if any(abs(start.gain - start.scale) > (1 - HELD) * start.scale for start in found.starts):
        columns += [("acts as", lambda start: _number(start.gain))]
    columns += [
        ("converged", lambda start: _share(start.converged, start.worst)),
        ("evals", lambda start: f"{start.evals:.1f}"),
        ("plain", lambda start: _share(start.plain_converged)),
        ("evals", lambda start: f"{start.plain_evals:.1f}"),
        ("radius", lambda start: _known(start, start.radius)),
    ]
    if whole:
        columns += [("range", lambda start: _known(start, *start.radii))]
    columns += [("max", lambda start: _known(start, start.largest))]
    if found.theory:
        columns += [("theory", lambda start: _number(start.forecast and start.forecast.radius))]
    if whole and any(math.isfinite(start.response) for start in found.starts):
        columns += [("h*.h*/N", lambda start: _known(start, start.response))]
        if found.theory:
            columns += [
                ("theory", lambda start: _number(start.forecast and start.forecast.response))
            ]
    rows = [[text(start) for _, text in columns] for start in found.starts]
    return [head for head, _ in columns], rows


def _known(start: Start, *values: float) -> str:
    """The range of `values`; a dash where they would be of survivors."""
    return "–".join(map(_number, values)) if start.workable else "–"


def _share(mean: float, worst: float | None = None) -> str:
    said = f"{100 * mean:.0f} %"
    return said if worst is None or worst == mean else f"{said} (≥ {100 * worst:.0f})"


def _number(value: float | None) -> str:
    """Three digits; a dash for none."""
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"
