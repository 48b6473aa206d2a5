"""How well each class is recognised, and which are confused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan

from equilibria.run.report.reading import Run, number, pick
from equilibria.run.report.words import count
from equilibria.words import percent, plural

_WHOLE = 20
"""Classes up to which the table of confusions is shown as a whole."""

_FREQUENT = 10
"""Confusions that are listed of a larger one."""


@dataclass(frozen=True)
class Bar:
    """A class with its figure.

    Attributes:
        label: its name.
        color: of the class in masks; empty for none.
        value: the figure, from 0 to 1; 0 where it is not known.
        figure: the same as text.
        units: how many pixels or images are of that class, as text.
    """

    label: str
    color: str
    value: float
    figure: str
    units: str


@dataclass(frozen=True)
class Confusion:
    """Which class was taken for which.

    Attributes:
        labels: of rows, the classes that are right, and of columns, those that were told.
        rows: shares of each row, which add up to 1.
        frequent: in place of rows where there are many classes: what was taken for what, how
            often, and the share of the first that it is.
    """

    labels: Sequence[str]
    rows: Sequence[Sequence[float]]
    frequent: Sequence[tuple[str, str, str, str]]


@dataclass(frozen=True)
class Classes:
    """The figures of each class of a run.

    Attributes:
        head: name of the figure.
        text: what it is.
        unit: what is counted.
        bars: one a class.
        confusion: None where it was not counted.
    """

    head: str
    text: str
    unit: str
    bars: Sequence[Bar]
    confusion: Confusion | None


def classes(run: Run) -> Classes | None:
    """Return what the page shows of each class; None where nothing is known of single classes."""
    labels: Sequence[str] = pick(run, "seen", "labels") or ()
    matrix: list[list[int]] | None = pick(run, "evaluation", "confusion")
    if matrix is not None and {len(matrix), *map(len, matrix)} != {len(labels)}:
        matrix = None
    overlaps = [number(run, "evaluation", f"iou_{label}") for label in labels]
    dense = any(map(isfinite, overlaps))
    if not labels or (matrix is None and not dense):
        return None
    totals = [sum(row) for row in matrix] if matrix else [nan] * len(labels)
    if dense:
        figures = overlaps
    else:
        assert matrix is not None  # or there were neither
        figures = [
            row[k] / total if total else nan
            for k, (row, total) in enumerate(zip(matrix, totals, strict=True))
        ]
    colors: Sequence[Sequence[int]] = pick(run, "seen", "colours") or ()
    shares = dense and matrix is not None and sum(totals) > 0
    bars = [
        Bar(
            label,
            "#{:02x}{:02x}{:02x}".format(*colors[k]) if k < len(colors) else "",
            figures[k] if isfinite(figures[k]) else 0.0,
            percent(figures[k]),
            percent(totals[k] / sum(totals)) if shares else count(totals[k]),
        )
        for k, label in enumerate(labels)
    ]
    text = (
        "Intersection over union of each class on the test data: of the pixels that are of the "
        "class or predicted as it, the share that are both. A dash marks a class that is neither "
        "present nor predicted."
        if dense
        else "The share of each class's test images that are classified correctly."
    )
    return Classes(
        "IoU" if dense else "accuracy",
        text,
        "share of pixels" if dense else "images",
        bars,
        _confusion(labels, matrix, "pixel" if dense else "image") if matrix else None,
    )


def _confusion(labels: Sequence[str], matrix: Sequence[Sequence[int]], unit: str) -> Confusion:
    if len(labels) <= _WHOLE:
        rows = [[each / max(1, sum(row)) for each in row] for row in matrix]
        return Confusion(labels, rows, ())
    found = sorted(
        ((each, i, j) for i, row in enumerate(matrix) for j, each in enumerate(row) if i != j),
        key=lambda entry: (-entry[0], *entry[1:]),
    )
    frequent = [
        (labels[i], labels[j], plural(each, unit), percent(each / sum(matrix[i])))
        for each, i, j in found[:_FREQUENT]
        if each
    ]
    return Confusion(labels, (), frequent)
