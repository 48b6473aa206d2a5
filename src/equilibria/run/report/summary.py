"""The summary: key figures, several runs side by side, the doctor's findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equilibria.metric import LOSS, Metric
from equilibria.precision import too_fine
from equilibria.run.report import reading
from equilibria.run.report.reading import Run, final_figures, last, number, pick
from equilibria.run.report.words import (
    UNKNOWN,
    TextTable,
    count,
    decimal,
    duration,
    figure,
    flat,
    keep_known,
    mib,
)
from equilibria.words import percent, plural

# --- remarks --------------------------------------------------------------------------------------

# What a reader has to know before the figures: what they rest on, and what is missing.


_FEW = 0.99
"""Share of converged solves below which every figure is qualified, as at the end of training."""


def remarks(run: Run) -> list[str]:
    """Sentences about a run; none about one that finished, converged and was examined."""
    parts = (_say_unfinished, _say_broken, _say_unsolved, _say_stalled, _say_left_out)
    return [sentence for part in parts for sentence in part(run)]


def _say_unfinished(run: Run) -> Iterator[str]:
    """Training that was stopped, and test data that were not evaluated."""
    done, planned = number(last(run), "epoch"), number(run, "recipe", "epochs")
    if done < planned:
        yield f"Training has not finished: this is the state after epoch {done:.0f} of {planned:g}."
    if not run.get("evaluation"):
        of = f"the {reading.final_split(run)} data after the last epoch"
        yield f"There is no final evaluation: the figures are those of {of}."


def _say_broken(run: Run) -> Iterator[str]:
    """Losses that are no numbers."""
    epochs = [
        row.get("epoch")
        for row in run["metrics"]
        if _lost(row.get("train")) or _lost(row.get("held"))
    ]
    if epochs:
        which = f"epoch {epochs[0]}"
        if len(epochs) > 1:
            which = f"{plural(len(epochs), 'epoch')}, the first of them epoch {epochs[0]}"
        yield f"The loss was NaN or infinite in {which}: training broke down there."
    if _lost(run.get("evaluation")):
        yield "The loss on the test data is NaN or infinite: the network's output means nothing."
    on = reading.final_split(run)
    lost = number(final_figures(run), "forward", "status", "NONFINITE")
    if lost > 0:
        which = f"Every {on} solve" if lost == 1 else f"{percent(lost)} of the {on} solves"
        yield f"{which} ended in NaN or infinity."


def _lost(figures: Mapping[str, Any] | None) -> bool:
    return bool(figures) and "loss" in figures and not math.isfinite(number(figures, "loss"))


def _say_unsolved(run: Run) -> Iterator[str]:
    """Solves that did not converge."""
    found, on = reading.share_converged(run), reading.final_split(run)
    if number(final_figures(run), "forward", "status", "NONFINITE") == 1:
        return  # which has been said
    if found == 0:
        yield (
            f"No {on} solve converged: the figures are of the states at which the solver stopped, "
            "which are not fixed points."
        )
    elif found < _FEW:
        yield (
            f"{percent(found)} of the {on} solves converged: the figures are over all samples, "
            "also those whose solver stopped short of a fixed point."
        )


def _say_stalled(run: Run) -> Iterator[str]:
    """Tolerances that the precision cannot reach; the doctor says it too, where it was asked."""
    rtol = reading.smallest(pick(run, "recipe", "solver", "rtol"))
    precision = str(pick(run, "recipe", "precision"))
    said = too_fine(precision, rtol, pick(final_figures(run), "forward", "status"))
    if said is not None and not run.get("examination"):
        yield " ".join(said)


def _say_left_out(run: Run) -> Iterator[str]:
    """An examination that was not made, and test images that were not looked at."""
    if reason := run.get("unexamined"):
        yield f"The run was not examined: {reason}."
    if reason := run.get("unpictured"):
        yield f"No test images are shown: {reason}."


# --- summary --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """One number at the top of the page, and what it means."""

    label: str
    value: str
    note: str


def tiles(run: Run) -> list[Tile]:
    """Key figures of one run; what was not measured is left out."""
    primary, on = reading.primary_of(run), reading.final_split(run)
    unit = str(pick(run, "about", "unit"))
    units = sum(number(row, unit) for row in run["metrics"])
    parameters = number(run, "about", "parameters")
    found = [
        Tile(f"{on.title()} {primary.label}", figure(primary, _figure(run, primary)), _beside(run)),
        *_solve_tiles(run),
        *_memory_tiles(run),
        Tile("Training speed", count(units / max(_seconds(run), 1e-9)), f"{unit} per second"),
        Tile(
            "Training time",
            duration(_seconds(run)),
            f"for {plural(len(run['metrics']), 'epoch')}",
        ),
        Tile(
            "Parameters",
            count(parameters),
            "independent of the depth" if reading.solves(run) else "of all layers",
        ),
    ]
    return [tile for tile in found if tile.value != UNKNOWN]


def _solve_tiles(run: Run) -> list[Tile]:
    """How the solves ended and what they cost, as far as there are any."""
    on, found = reading.final_split(run), reading.share_converged(run)
    forward = final_figures(run).get("forward")
    others = [
        f"{percent(part)} {name}"
        for name, part in (pick(forward, "status") or {}).items()
        if part and name != "CONVERGED"
    ]
    most = decimal(number(forward, "evals", "p99"), 0)
    until = {1.0: "until it converged", 0.0: "until its solver gave up"}
    adjoint = last(run).get("train", {}).get("adjoint") or {}
    backward = number(adjoint, "status", "CONVERGED")
    where = {1.0: "at the solutions", 0.0: "where the solver stopped, at no solution"}
    return [
        Tile(
            "Converged",
            percent(found),
            f"of the {on} solves reached the tolerance" + "".join(f"; {each}" for each in others),
        ),
        Tile(
            "Evaluations",
            decimal(number(forward, "evals", "mean")),
            f"per {on} sample {until.get(found, 'until it converged or its solver gave up')}; "
            f"at most {most} for 99 % of them",
        ),
        Tile(
            "Error of the state",
            percent(number(forward, "error", "p50")),
            f"estimated ‖z − z*‖ / ‖z*‖ of the median {on} sample that converged; at most "
            f"{percent(number(forward, 'error', 'p90'))} for 90 % of them",
        ),
        Tile(
            "Backward solve",
            decimal(number(adjoint, "evals", "mean")),
            "vector–Jacobian products per sample in training"
            + (f"; {percent(backward)} converged" if backward < 1 else ""),
        ),
        Tile(
            "Spectral radius",
            decimal(number(last(run), "spectral_radius", "mean"), 2),
            f"of the Jacobian {where.get(found, 'where the solves ended')}; below 1 plain "
            "iteration converges nearby",
        ),
    ]


def _memory_tiles(run: Run) -> list[Tile]:
    size, unrolled = _memory(run)
    if not size > 0:
        return []
    note = "per step, in forward and backward"
    if unrolled:
        kept = any("kept_bytes" in point for point in reading.memory_of(run))
        note = (
            "per step, at any depth, including the solvers' histories"
            + " and the states kept from step to step" * kept
            + f"; {unrolled}"
        )
    return [Tile("Training memory", mib(size), note)]


def comparison(runs: Sequence[Run]) -> TextTable:
    """Key figures of several runs, a row each."""
    on = {reading.final_split(run) for run in runs}
    columns: list[tuple[str, Callable[[Run], str]]] = [
        ("data", _source),
        *([("judged on", reading.final_split)] if len(on) > 1 else []),
        *(
            (
                f"{on.copy().pop()} {each.label}" if len(on) == 1 else each.label,
                lambda run, m=each: figure(m, _figure(run, m)),
            )
            for each in reading.metrics_of(runs)
        ),
        ("converged", lambda run: percent(reading.share_converged(run))),
        (
            "evaluations",
            lambda run: decimal(number(final_figures(run), "forward", "evals", "mean")),
        ),
        (
            "backward products",
            lambda run: decimal(number(last(run), "train", "adjoint", "evals", "mean")),
        ),
        (
            "spectral radius",
            lambda run: decimal(number(last(run), "spectral_radius", "mean"), 3),
        ),
        ("step memory", lambda run: mib(_memory(run)[0])),
        ("parameters", lambda run: count(number(run, "about", "parameters"))),
        ("epochs", lambda run: str(len(run["metrics"]))),
        ("time", lambda run: duration(_seconds(run))),
    ]
    return keep_known([("run", lambda run: run["name"]), *columns], runs)


@dataclass(frozen=True)
class Differences:
    """Keys in which recipes differ: those that all have, and those that only some have."""

    shared: TextTable | None
    partial: TextTable | None


def differences(runs: Sequence[Run]) -> Differences:
    """The keys in which the recipes differ.

    Networks of unlike architectures have dozens of keys that the others lack: these are apart.
    """
    recipes = [dict(flat(run.get("recipe") or {})) for run in runs]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key != "description")
    head = ["setting", *(run["name"] for run in runs)]

    def table(everywhere: bool) -> TextTable | None:
        values = {
            key: [recipe.get(key, UNKNOWN) for recipe in recipes]
            for key in keys
            if all(key in recipe for recipe in recipes if recipe) == everywhere
        }
        rows = [[key, *found] for key, found in values.items() if len(set(found)) > 1]
        return TextTable(head, rows) if rows else None

    return Differences(table(True), table(False))


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


def _figure(run: Run, metric: Metric) -> float:
    return number(final_figures(run), metric.name)


def _beside(run: Run) -> str:
    """The note on the primary figure: the other figures, and those of what it is compared with."""
    primary, *others = reading.metrics_of([run]) or [LOSS]
    of = "" if _source(run) == UNKNOWN else f" of {_source(run)}"
    parts = [f"on data{of} never trained on"]
    # Those of single classes are drawn by themselves.
    left_out = {LOSS.name, *(f"iou_{label}" for label in pick(run, "seen", "labels") or ())}
    for each in others:
        if each.name not in left_out and math.isfinite(value := _figure(run, each)):
            parts.append(f"{each.format(value)} {each.label}")
    if math.isfinite(value := number(run, "evaluation", "baseline", primary.name)):
        name = pick(run, "evaluation", "baseline", "name")
        parts.append(f"{name}: {primary.format(value)}")
    return "; ".join(parts)


def _seconds(run: Run) -> float:
    seconds = [number(row, "seconds") for row in run["metrics"]]
    return sum(seconds) if seconds else math.nan


def _memory(run: Run) -> tuple[float, str]:
    """Bytes of a step of the DEQ, and in words those of the layer unrolled.

    Unrolled about as often as the solver evaluates the layer, and as often as was measured.
    """
    points = reading.memory_of(run)
    unrolled = {p["evals"]: p["bytes"] for p in points if p["kind"] == "unrolled"}
    mine = {p["evals"]: p["bytes"] for p in points if p["kind"] == "deq"}
    explicit = [p["bytes"] for p in points if p["kind"] == "explicit"]
    if explicit:
        return float(explicit[0]), ""
    if not unrolled or max(unrolled) not in mine:
        return math.nan, ""
    needed = number(final_figures(run), "forward", "evals", "p99")
    near = min((d for d in unrolled if not d < needed), default=max(unrolled))
    depths = dict.fromkeys((near, max(unrolled)))
    words = ", ".join(f"{depth} times {mib(unrolled[depth])}" for depth in depths)
    return mine[max(unrolled)], f"the layer unrolled {words}"
