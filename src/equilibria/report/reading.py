"""What a page reads of a run, which is a dictionary as `page` describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any

from equilibria.metric import LOSS, Metric

__all__ = [
    "Row",
    "Run",
    "budget_points",
    "early_points",
    "held_name",
    "metrics_of",
    "number",
    "pick",
    "primary_of",
    "solved",
]

Run = Mapping[str, Any]
Row = Mapping[str, Any]


def pick(tree: Any, *path: Any) -> Any:
    """The value at a path of keys, None where one is missing."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return None
        tree = tree[key]
    return tree


def number(tree: Any, *path: Any) -> float:
    """The number at a path of keys, NaN where there is none."""
    value = pick(tree, *path)
    return float(value) if isinstance(value, int | float) else nan


def metrics_of(runs: Sequence[Run]) -> list[Metric]:
    """The metrics that runs record, each once; for older runs, inferred from their numbers."""
    found: dict[str, Metric] = {}
    for run in runs:
        last = run["metrics"][-1] if run["metrics"] else {}
        names = [k for k, v in (last.get("held") or {}).items() if isinstance(v, float)]
        plain = [{"name": name} for name in sorted(names, key=LOSS.name.__eq__)]
        for each in pick(run, "about", "metrics") or plain:
            found.setdefault(each["name"], Metric(**each))
    return list(found.values())


def primary_of(run: Run) -> Metric:
    """The metric that a run is compared by."""
    return next(iter(metrics_of([run])), LOSS)


def held_name(runs: Sequence[Run]) -> str:
    """The name of the data that are evaluated after each epoch."""
    names = dict.fromkeys(str(run.get("eval_split", "test")) for run in runs)
    return " or ".join("validation" if name == "valid" else name for name in names)


def early_points(run: Run, metric: Metric) -> dict[float, float]:
    """A figure after numbers of evaluations, of the whole test set if known, else of a batch."""
    if whole := pick(run, "evaluation", "at"):
        points = {float(k): number(figures, metric.name) for k, figures in whole.items()}
    elif _examined(run, metric):
        rows = run["examination"]["depth"]["points"]
        points = {float(row["evals"]): number(row, "figure") for row in rows}
    else:
        points = {}
    return {k: value for k, value in sorted(points.items()) if isfinite(value)}


def solved(run: Run, metric: Metric) -> float:
    """The figure of the solved answer that belongs to `early_points`."""
    if pick(run, "evaluation", "at"):
        return number(run, "evaluation", metric.name)
    return number(run, "examination", "depth", "figure") if _examined(run, metric) else nan


def budget_points(run: Run, metric: Metric) -> dict[float, float]:
    """A figure under limits on evaluations."""
    rows = pick(run, "evaluation", "budgets") or []
    points = {float(row["max_evals"]): number(row, metric.name) for row in rows}
    return {limit: value for limit, value in points.items() if isfinite(value)}


def _examined(run: Run, metric: Metric) -> bool:
    return pick(run, "examination", "depth", "metric", "name") == metric.name
