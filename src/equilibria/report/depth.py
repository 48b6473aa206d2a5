"""The plots of what evaluations buy."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from equilibria.report.canvas import Canvas, Drawing
from equilibria.report.plots import Run, Sheet, number, pick

__all__ = [
    "accuracy_against_evaluations",
    "accuracy_points",
    "perplexity_against_evaluations",
    "perplexity_points",
]

_FLAT = 0.05


def accuracy_against_evaluations(runs: Sequence[Run]) -> Drawing | None:
    """Test accuracy of the answer read off after a few evaluations."""
    canvas = Canvas(
        "accuracy when the solve is cut short after a number of evaluations",
        "evaluations of f before the answer is read",
        "accuracy",
        percent=True,
        log_x=True,
    )
    sheet = Sheet(canvas, runs)
    places: set[float] = set()
    seen: list[float] = []
    for i, run in enumerate(runs):
        points = accuracy_points(run)
        places.update(points)
        seen += points.values()
        sheet.line(i, (list(points), list(points.values())) if points else None, None)
        if len(runs) == 1 and isfinite(_final_accuracy(run)):
            canvas.level(_final_accuracy(run), "solved to tolerance")
    canvas.ticks(sorted(places))
    if seen and max(seen) - min(seen) < _FLAT:  # do not blow up what is noise
        canvas.limits(max(seen) - _FLAT, max(seen) + _FLAT / 5)
    return sheet.finish()


def perplexity_against_evaluations(runs: Sequence[Run]) -> Drawing | None:
    """Perplexity of a text whose solves are stopped after a few evaluations."""
    canvas = Canvas(
        "perplexity when all solves are stopped after a number of evaluations",
        "most evaluations of f for a segment",
        "perplexity",
        log_x=True,
        log_y=True,
    )
    sheet = Sheet(canvas, runs)
    places: set[float] = set()
    for i, run in enumerate(runs):
        points = perplexity_points(run)
        places.update(points)
        sheet.line(i, (list(points), list(points.values())) if points else None, None)
        trigram = number(run, "evaluation", "trigram", "perplexity")
        if len(runs) == 1 and points and isfinite(trigram):
            canvas.level(trigram, "trigram model")
    canvas.ticks(sorted(places))
    return sheet.finish()


def accuracy_points(run: Run) -> dict[float, float]:
    """Accuracy after a number of evaluations, of the whole test set if known, else of a batch."""
    whole = pick(run, "evaluation", "accuracy_at")
    if whole:
        return dict(sorted((float(k), float(v)) for k, v in whole.items()))
    points = pick(run, "examination", "depth", "points") or []
    return {float(p["evals"]): float(p["accuracy"]) for p in points if p["accuracy"] is not None}


def perplexity_points(run: Run) -> dict[float, float]:
    """Perplexity under limits of evaluations."""
    rows = pick(run, "evaluation", "budgets") or []
    return {float(row["max_evals"]): float(row["perplexity"]) for row in rows}


def _final_accuracy(run: Run) -> float:
    """Accuracy of the solved answer that belongs to `accuracy_points`."""
    if pick(run, "evaluation", "accuracy_at"):
        return number(run, "evaluation", "accuracy")
    return number(run, "examination", "depth", "accuracy")
