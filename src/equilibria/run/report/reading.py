"""What a page reads of a run, which is a dictionary as `page` describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any

from equilibria.metric import LOSS, Metric

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


def smallest(tree: Any) -> float:
    """The smallest number of a tree of numbers, such as tolerances of leaves, but for those that
    are 0; a number alone is itself. NaN where there is none."""
    if isinstance(tree, int | float):
        return float(tree)
    parts = list(tree.values() if isinstance(tree, Mapping) else tree or ())
    return min((each for each in map(smallest, parts) if each > 0), default=nan)


def last(run: Run) -> Row:
    """The metrics of the last epoch."""
    return run["metrics"][-1] if run["metrics"] else {}


def memory_of(run: Run) -> list[Row]:
    """The points of a run's memory. Where training keeps states from step to step, those of its own
    layer, `deq`, include them, `kept_bytes`: they are there throughout a step."""
    kept = pick(last(run), "reuse", "bytes") or 0
    return [
        {**point, "bytes": point["bytes"] + kept, "kept_bytes": kept}
        if kept and point["kind"] == "deq"
        else point
        for point in run.get("memory") or []
    ]


def final_figures(run: Run) -> Row:
    """The figures that a run is judged by: on the test data or, where these were not evaluated,
    those that followed the last epoch."""
    return run.get("evaluation") or last(run).get("held") or {}


def final_split(run: Run) -> str:
    """The name of the data that `judged` is about."""
    return "test" if run.get("evaluation") else name_held([run])


def solves(run: Run) -> bool:
    """Whether the run is of a network that solves for a fixed point, as far as it was measured."""
    rows = [*run["metrics"], {"train": run.get("evaluation")}]
    parts = [row.get(part) for row in rows for part in ("train", "held")]
    return bool(run.get("examination")) or any(pick(each, "forward", "status") for each in parts)


def share_converged(run: Run) -> float:
    """The share of `judged` solves that converged; NaN where there is none."""
    return number(final_figures(run), "forward", "status", "CONVERGED")


def metrics_of(runs: Sequence[Run]) -> list[Metric]:
    """The metrics that runs record, each once; for older runs, inferred from their numbers."""
    found: dict[str, Metric] = {}
    for run in runs:
        names = [k for k, v in (last(run).get("held") or {}).items() if isinstance(v, float)]
        plain = [{"name": name} for name in sorted(names, key=LOSS.name.__eq__)]
        for each in pick(run, "about", "metrics") or plain:
            found.setdefault(each["name"], Metric.of(each))
    return list(found.values())


def loss_of(runs: Sequence[Run]) -> Metric:
    """The loss of runs; where its name is not that of all, the plain one."""
    found = [{each.name: each for each in metrics_of([run])}.get(LOSS.name, LOSS) for run in runs]
    return found[0] if len({each.label for each in found}) == 1 else LOSS


def primary_of(run: Run) -> Metric:
    """The metric that a run is compared by."""
    return next(iter(metrics_of([run])), LOSS)


def name_held(runs: Sequence[Run]) -> str:
    """The name of the data that are evaluated after each epoch."""
    names = dict.fromkeys(str(run.get("eval_split", "test")) for run in runs)
    return " or ".join("validation" if name == "valid" else name for name in names)


def early_points(run: Run, metric: Metric) -> dict[float, float]:
    """A figure after numbers of evaluations, of the whole test set if known, else of a batch."""
    if whole := pick(run, "evaluation", "at"):
        most = number(run, "evaluation", "forward", "evals", "max")
        points = {float(k): number(figures, metric.name) for k, figures in whole.items()}
        points = {k: value for k, value in points.items() if not k > most}  # after it none was made
    elif _examined(run, metric):
        rows = run["examination"]["depth"]["points"]
        points = {float(row["evals"]): number(row, "figure") for row in rows}
    else:
        points = {}
    return {k: value for k, value in sorted(points.items()) if isfinite(value)}


def end_point(run: Run, metric: Metric) -> tuple[str, float]:
    """The figure of the finished solves that belongs to `early_points`, and what they were."""
    if pick(run, "evaluation", "at"):
        share, figure = share_converged(run), number(run, "evaluation", metric.name)
    elif _examined(run, metric):
        share = number(run, "examination", "forward", "status", "CONVERGED")
        figure = number(run, "examination", "depth", "figure")
    else:
        return "", nan
    return "solved to tolerance" if share == 1 else "where the solver stops", figure


def budget_points(run: Run, metric: Metric) -> dict[float, float]:
    """A figure under limits on evaluations."""
    rows = pick(run, "evaluation", "budgets") or []
    points = {float(row["max_evals"]): number(row, metric.name) for row in rows}
    return {limit: value for limit, value in points.items() if isfinite(value)}


def _examined(run: Run, metric: Metric) -> bool:
    return pick(run, "examination", "depth", "metric", "name") == metric.name
