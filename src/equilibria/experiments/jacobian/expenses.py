"""Figure 6 and Section 3.4: error, memory and run time of the networks on images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments.case import Done, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN
from equilibria.experiments.jacobian import costs, images
from equilibria.experiments.jacobian.accuracies import (
    DIVERGED,
    LIMIT,
    OURS,
    PAPER,
    READ_AS,
    accuracies,
    lacking,
)
from equilibria.experiments.jacobian.costs import MEMORY, READERS
from equilibria.experiments.published import COST

__all__ = ["errors", "expenses", "inference", "run_times", "shares", "step_memory"]

MIB = 2**20
SOLVERS = {"recipe": "the recipe's", "broyden": "Broyden, all steps kept"}
SHORT = {"resnet": "ResNet", "plain": "MDEQ", "stopped": "stopped", "regularised": "regularised"}


def expenses(done: Results) -> Table:
    rows: list[list[Any]] = [
        [each.model, PAPER, each.error, f"{each.memory:g} GB", each.time, None, None]
        for each in COST
    ]
    times, memory = done.get(costs.times_key(0)), done.get(MEMORY)
    for name in ("resnet", *READERS):
        read = None if times is None else times.value["read"]
        steps = None if times is None else times.value["steps"]
        trains, error = name != "stopped", _error(done, name)
        rows.append(
            [
                READ_AS.get(name, "ResNet"),
                OURS,
                error,
                _step_mib(memory, name) if trains else None,
                None if read is None else read[name] / read["resnet"],
                None if read is None else read[name],
                None if steps is None or not trains else steps[name]["step"],
            ]
        )
    return Table(
        title="Figure 6: error, memory, run time",
        columns=[
            *("network", "whose", "test error, %", "memory of a training step"),
            *("run time of inference, relative", "a batch read, ms", "a training step, ms"),
        ],
        rows=rows,
        note="Run times relative to the explicit network (the paper's: ResNet-101). Ours: medians "
        "of trained networks of seed 0 in turns, in one process; a training step is weighed by the "
        "share of steps that have the penalty. Memory: in float32, peak of forward and backward "
        "less parameters and gradients; with the penalty, that of a step which has it. Errors: "
        "means over the seeds that have not diverged.",
    )


def inference(done: Results) -> Table:
    found = done.get(MEMORY)
    rows: list[list[Any]] = []
    for solver, words in SOLVERS.items():
        for reader, label in READ_AS.items():
            if found is None:
                rows.append([label, words, NOT_RUN, *[None] * 3])
                continue
            inference = found.value["inference"]
            mine, bare = inference[reader][solver], inference[reader]["none"]
            rows.append(
                [
                    label,
                    words,
                    mine / MIB,
                    (mine - bare) / MIB,
                    _share(found, reader, solver),
                    inference["plain"][solver] / mine,
                ]
            )
    return Table(
        title="Section 3.4: the solver's share of the memory of inference",
        columns=[
            *("network", "solver", "peak, MiB", "of which the solver's, MiB"),
            *("the solver's share, %", f"MDEQ at {LIMIT} over this"),
        ],
        rows=rows,
        note="In float32: peak of a forward without gradients, less parameters. The solver's: what "
        "is more than plain iteration takes, which keeps no history. The paper says of its "
        "transformer that the penalty saves over half of the memory of inference with Broyden.",
    )


def errors(done: Results) -> Panel:
    errors = {name: _error(done, name) for name in SHORT}
    values = {name: None if isinstance(error, str) else error for name, error in errors.items()}
    return _bars("Fig. 6: test error", "%", values)


def step_memory(done: Results) -> Panel:
    found = done.get(MEMORY)
    steps = {} if found is None else found.value["step"]
    kinds = {"resnet": "resnet", "plain": "plain", "regularised": "penalised"}
    values = {name: steps[kind] / MIB if steps else None for name, kind in kinds.items()}
    return _bars("Fig. 6: memory of a training step", "MiB", values)


def run_times(done: Results) -> Panel:
    found = done.get(costs.times_key(0))
    read = {} if found is None else found.value["read"]
    values = {name: read[name] / read["resnet"] if read else None for name in SHORT}
    return _bars("Fig. 6: run time of inference", "ResNet = 1", values)


def shares(done: Results) -> Panel:
    found = done.get(MEMORY)
    series = [
        Series(
            label=words,
            x=list(range(len(READ_AS))),
            y=[_share(found, reader, solver) for reader in READ_AS],
            style="bars",
        )
        for solver, words in SOLVERS.items()
    ]
    return Panel(
        title="Section 3.4: the solver's share of inference memory",
        x="",
        y="%",
        series=series,
        names=[SHORT[reader] for reader in READ_AS],
        span_y=(0, 130),
    )


def _bars(title: str, y: str, values: Mapping[str, float | None]) -> Panel:
    """A bar for each of ours."""
    return Panel(
        title=title,
        x="",
        y=y,
        series=[
            Series(label="", x=list(range(len(values))), y=list(values.values()), style="bars")
        ],
        names=[SHORT[name] for name in values],
        zero=True,
    )


def _error(done: Results, name: str) -> float | str:
    """Test error in percent; where there is none, why."""
    if name == "resnet":
        found = done.get(images.resnet_key())
        if found is None or found.value["diverged"]:
            return NOT_RUN if found is None else DIVERGED
        return 100 * (1 - found.value["evaluation"]["accuracy"])
    name, limit = READERS[name]
    known = accuracies(done, name, limit)
    return 100 - statistics.fmean(known) if known else lacking(done, name)


def _step_mib(memory: Done | None, name: str) -> str | None:
    if memory is None:
        return NOT_RUN
    step: Mapping[str, float] = memory.value["step"]
    return f"{step['penalised' if name == 'regularised' else name] / MIB:.1f} MiB"


def _share(found: Done | None, reader: str, solver: str) -> float | None:
    """The solver's share of the memory of inference in percent."""
    if found is None:
        return None
    peaks = found.value["inference"][reader]
    return 100 * (1 - peaks["none"] / peaks[solver])
