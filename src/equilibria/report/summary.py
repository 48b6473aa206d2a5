"""The summary: key figures, several runs side by side, the doctor's findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equilibria.metric import LOSS, Metric
from equilibria.report.reading import Run, metrics_of, number, pick, primary_of
from equilibria.report.words import (
    UNKNOWN,
    Table,
    count,
    decimal,
    duration,
    figure,
    flat,
    mib,
    percent,
)

__all__ = ["Tile", "comparison", "differences", "sorted_findings", "tiles", "verdicts"]


@dataclass(frozen=True)
class Tile:
    """One number at the top of the page, and what it means."""

    label: str
    value: str
    note: str


def tiles(run: Run) -> list[Tile]:
    """Key figures of one run; what was not measured is left out."""
    mine, unrolled = _memory(run)
    last = _last(run)
    radius = number(last, "spectral_radius", "mean")
    primary = primary_of(run)
    found = [
        Tile(f"Test {primary.label}", figure(primary, _figure(run, primary)), _beside(run)),
        Tile(
            "Solved to tolerance",
            percent(_test(run, "status", "CONVERGED")),
            "of test samples converged",
        ),
        Tile(
            "Depth found",
            decimal(_test(run, "evals", "mean")),
            f"evaluations per test sample; 99 % need at most "
            f"{decimal(_test(run, 'evals', 'p99'), 0)}",
        ),
        Tile(
            "Backward solve",
            decimal(number(last, "train", "adjoint", "evals", "mean")),
            "vector–Jacobian products per sample in training",
        ),
        Tile(
            "Spectral radius",
            decimal(radius, 2),
            "of the Jacobian at the solution; below 1 plain iteration converges",
        ),
    ]
    if math.isfinite(mine) and mine > 0:
        found.append(
            Tile(
                "Training memory",
                mib(mine),
                f"per step, at any depth, including the solvers' histories; {unrolled}"
                if unrolled
                else "per step, which stores what every layer computed",
            )
        )
    unit = str(pick(run, "about", "unit"))
    units = sum(number(row, unit) for row in run["metrics"])
    found.append(
        Tile("Training speed", count(units / max(_seconds(run), 1e-9)), f"{unit} per second")
    )
    epochs = len(run["metrics"])
    found.append(Tile("Training time", duration(_seconds(run)), f"for {epochs} epochs"))
    parameters = number(run, "about", "parameters")
    found.append(Tile("Parameters", count(parameters), "independent of the depth"))
    return [tile for tile in found if tile.value != UNKNOWN]


def comparison(runs: Sequence[Run]) -> Table:
    """Key figures of several runs, a row each."""
    columns: list[tuple[str, Callable[[Run], str]]] = [
        ("data", _source),
        *(
            (f"test {each.label}", lambda run, m=each: figure(m, _figure(run, m)))
            for each in metrics_of(runs)
        ),
        ("converged", lambda run: percent(_test(run, "status", "CONVERGED"))),
        ("evaluations", lambda run: decimal(_test(run, "evals", "mean"))),
        (
            "backward products",
            lambda run: decimal(number(_last(run), "train", "adjoint", "evals", "mean")),
        ),
        (
            "spectral radius",
            lambda run: decimal(number(_last(run), "spectral_radius", "mean"), 3),
        ),
        ("step memory", lambda run: mib(_memory(run)[0])),
        ("parameters", lambda run: count(number(run, "about", "parameters"))),
        ("epochs", lambda run: str(len(run["metrics"]))),
        ("time", lambda run: duration(_seconds(run))),
    ]
    # What no run has is left out.
    columns = [each for each in columns if any(each[1](run) != UNKNOWN for run in runs)]
    rows = [[run["name"], *(text(run) for _, text in columns)] for run in runs]
    return Table(["run", *(head for head, _ in columns)], rows)


def differences(runs: Sequence[Run]) -> Table | None:
    """The keys in which the recipes differ."""
    recipes = [dict(flat(run.get("recipe") or {})) for run in runs]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key != "description")
    values = {key: [recipe.get(key, UNKNOWN) for recipe in recipes] for key in keys}
    rows = [[key, *found] for key, found in values.items() if len(set(found)) > 1]
    if not rows:
        return None
    return Table(["setting", *(run["name"] for run in runs)], rows)


def sorted_findings(run: Run) -> list[Mapping[str, str]]:
    """A run's findings, the worst first."""
    order = ("unhealthy", "watch", "healthy")
    return sorted(run["examination"]["findings"], key=lambda f: order.index(f["severity"]))


def verdicts(runs: Sequence[Run]) -> list[tuple[str, list[str | None]]]:
    """For every topic the severity that each examined run was given."""
    found = [
        {finding["topic"]: finding["severity"] for finding in run["examination"]["findings"]}
        for run in runs
        if run.get("examination")
    ]
    topics = dict.fromkeys(topic for severities in found for topic in severities)
    return [(topic, [severities.get(topic) for severities in found]) for topic in topics]


def _source(run: Run) -> str:
    """What the data of a run are."""
    return str((run.get("about") or {}).get("source") or UNKNOWN)


def _last(run: Run) -> Mapping[str, Any]:
    return run["metrics"][-1] if run["metrics"] else {}


def _figure(run: Run, metric: Metric) -> float:
    """A figure on the test data if known, else on those that followed the last epoch."""
    whole = number(run, "evaluation", metric.name)
    return whole if math.isfinite(whole) else number(_last(run), "held", metric.name)


def _beside(run: Run) -> str:
    """The note on the primary figure: the other figures, and that of the baseline."""
    primary, *others = metrics_of([run]) or [LOSS]
    of = "" if _source(run) == UNKNOWN else f" of {_source(run)}"
    parts = [f"on data{of} never seen in training"]
    for each in others:
        if each.name != LOSS.name and math.isfinite(value := _figure(run, each)):
            parts.append(f"{each.format(value)} {each.label}")
    baseline = number(run, "evaluation", "baseline", primary.name)
    if math.isfinite(baseline):
        name = pick(run, "evaluation", "baseline", "name")
        parts.append(f"a {name} has {primary.format(baseline)}")
    return "; ".join(parts)


def _test(run: Run, *path: str) -> float:
    """A number of the forward solves on the test data, from the evaluation or the last epoch."""
    whole = number(run, "evaluation", "forward", *path)
    return whole if math.isfinite(whole) else number(_last(run), "held", "forward", *path)


def _seconds(run: Run) -> float:
    seconds = [number(row, "seconds") for row in run["metrics"]]
    return sum(seconds) if seconds else math.nan


def _memory(run: Run) -> tuple[float, str]:
    """Bytes of a step of the DEQ, and in words those of the layer unrolled.

    Unrolled about as often as the solver evaluates the layer, and as often as was measured.
    """
    points = run.get("memory") or []
    unrolled = {p["evals"]: p["bytes"] for p in points if p["kind"] == "unrolled"}
    mine = {p["evals"]: p["bytes"] for p in points if p["kind"] == "deq"}
    explicit = [p["bytes"] for p in points if p["kind"] == "explicit"]
    if explicit:
        return float(explicit[0]), ""
    if not unrolled or max(unrolled) not in mine:
        return math.nan, ""
    needed = _test(run, "evals", "p99")
    near = min((d for d in unrolled if not d < needed), default=max(unrolled))
    depths = dict.fromkeys((near, max(unrolled)))
    words = ", ".join(f"{depth} times {mib(unrolled[depth])}" for depth in depths)
    return mine[max(unrolled)], f"the layer unrolled {words}"
