"""What the penalty keeps and saves on images: its measures, and the tables of them."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import pandas as pd
import torch
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.nn.using import in_eval_mode
from equilibria.run import evaluation, memory
from equilibria.run.models import EquilibriumModel, Model
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures import timing
from equilibria.run.studies.results import Data, Frame, select
from equilibria.run.studies.study import Context
from equilibria.run.studies.views import (
    DIVERGED,
    NOT_RUN,
    Bars,
    Chart,
    Pivot,
    first,
    mean,
    mean_and_deviation,
    of,
)
from equilibria.solve import Broyden, Picard, Solver
from papers.jacobian.images import BEST, LIMIT, SEEDS, THIRD
from papers.measures.memory import step_bytes
from papers.published import BAI_2021, read_published

# --- accuracy of solves stopped early, time and memory --------------------------------------------

LIMITS = (1, 2, 3, 4, 5, 6, LIMIT)
"""Evaluations after which solves are stopped: Table 3's, and those of training without penalty."""

READERS: dict[str, tuple[str, int | None]] = {
    "resnet": ("resnet", None),
    "plain": ("plain", LIMIT),
    "stopped": ("plain", THIRD),
    "regularised": (BEST, THIRD),
}
"""Which network reads test images, and after how many evaluations a solve is stopped."""

SOLVERS = {"own": "the recipe's", "broyden": "Broyden, all steps kept"}
"""Solvers whose memory is measured: the network's own, and the papers'."""


@identified_as("_costs.stopped")
def stop_early(context: Context, *, limits: Iterable[int]) -> Iterable[dict[str, Any]]:
    """Accuracy on the test images by `limit` of a solve; of an explicit network, one row."""
    run, network = context.run, context.factors["network"]
    if run.diverged:
        return
    accelerator = evaluation.accelerator(run.recipe.precision)
    model, size = run.load().model.to(accelerator.device), run.recipe.eval_batch_size
    for limit in limits if isinstance(model, EquilibriumModel) else [None]:
        options = {"batch_size": size, "solver": _limit_solver(model, limit)}
        accuracy = evaluation.evaluate(model, run.task, accelerator, **options)["accuracy"]
        reader = next((name for name, of in READERS.items() if of == (network, limit)), None)
        yield {"limit": limit, "reader": reader, "accuracy": accuracy, "error": 1 - accuracy}


def _limit_solver(model: Model, limit: int | None) -> Solver | None:
    """The solver of an equilibrium network with another limit; None without one."""
    if limit is None:
        return None
    return replace(cast(Any, cast(EquilibriumModel, model).deq.solver), max_evals=limit)


@identified_as("_costs.pace")
def pace(context: Context) -> dict[str, float | None]:
    """`epoch_seconds`: the median over the epochs after the shallow start; None without any."""
    run, start = context.run, context.run.recipe.pretrain
    begins = [0, *(epoch["step"] for epoch in run.metrics)]
    epochs = zip(begins, run.metrics, strict=False)
    shallow = start.steps if start else 0
    seconds = [epoch["seconds"] for begin, epoch in epochs if begin >= shallow]
    return {"epoch_seconds": statistics.median(seconds) if seconds and not run.diverged else None}


@identified_as("_costs.times")
def times(context: Context) -> Iterable[dict[str, Any]]:
    """Milliseconds of a training step and of reading a batch of test images, by `reader`.

    `relative` is the time of reading over that of the explicit network.
    """
    runs = context.runs.items()
    trainers = {name: run.trainer(trained=True, before_end=timing.SPENT) for name, run in runs}
    steps = timing.steps(trainers)
    readers = {name: (trainers[network], limit) for name, (network, limit) in READERS.items()}
    calls = {
        n: timing.reader(t, _limit_solver(t.model, limit)) for n, (t, limit) in readers.items()
    }
    read = timing.milliseconds(calls)
    for name, (network, _) in READERS.items():
        step = None if name == "stopped" else steps[network]["step"]
        relative = read[name] / read["resnet"]
        yield {"reader": name, "read_ms": read[name], "relative": relative, "step_ms": step}


@identified_as("_costs.memories")
def memories(context: Context) -> Iterable[dict[str, Any]]:
    """Bytes by `reader`, in float32: of a training step, with the penalty where there is one; and
    by `solver` of inference, the solver's share of them, and by how much the plain network's are
    larger, `saving`."""
    whole: dict[str, int] = {}
    for reader, (network, limit) in READERS.items():
        run = context.runs[network]
        recipe, task = run.recipe, run.task
        model = run.load().model.to(evaluation.accelerator(recipe.precision).device)
        if reader != "stopped":
            batch = task.feed(recipe.rows, recipe.seed).batch(0)
            peak = step_bytes(model, task, batch, penalized=recipe.regularizer is not None)
            yield {"reader": reader, "step_bytes": peak}
        if isinstance(model, EquilibriumModel) and limit is not None:
            inputs = task.sample("test", recipe.eval_batch_size).inputs
            for solver, (peak, bare) in inference(model, inputs, limit).items():
                whole.setdefault(solver, peak)
                row = {"reader": reader, "solver": solver, "peak_bytes": peak}
                row |= {"history_bytes": peak - bare, "share": 1 - bare / peak}
                yield row | {"saving": whole[solver] / peak}


@torch.no_grad()
def inference(model: EquilibriumModel, inputs: Any, limit: int) -> dict[str, tuple[int, int]]:
    """Return the peak of a forward without gradients, in bytes, with each of `SOLVERS`, stopped
    after `limit` evaluations, and without a history, by plain iteration.

    papers: Bai et al. 2021, sec. 3.4.
    """
    own = cast(Any, model.deq.solver)
    common = {"rtol": own.rtol, "max_evals": limit}
    device = next(model.parameters()).device
    inputs = pytree.tree_map(lambda x: x.to(device), inputs)
    peaks: list[int] = []
    for solver in (Picard(**common), replace(own, **common), Broyden(**common)):
        with in_eval_mode(model), using(model, eval_solver=solver):
            model(inputs)  # what is set up once is not counted
            peaks.append(memory.peak_bytes(lambda: model(inputs), device))
    return {name: (peak, peaks[0]) for name, peak in zip(SOLVERS, peaks[1:], strict=True)}


# --- Tables 2 and 3, Figure 6 and section 3.4 -----------------------------------------------------

MIB = 2**20
WORDS = {
    "resnet": "ResNet",
    "plain": f"MDEQ, {LIMIT} evaluations",
    "stopped": f"MDEQ, stopped at {THIRD}",
    "regularised": f"MDEQ, regularised, {THIRD}",
}
Rows = Iterable[Sequence[Any]]


def _cell(data: Data, column: str, **where: Any) -> Any:
    return first(column)(select(data.rows, where))


def _explain_gap(data: Data, network: str, **where: Any) -> str:
    return DIVERGED if _cell(data, "diverged", network=network, **where) else NOT_RUN


def _accuracies(data: Data, **where: Any) -> Frame:
    """Return accuracies on the test images in percent, by seed."""
    return 100 * data.series("accuracy", **where).set_index("seed")["accuracy"].astype(float)


def _against(data: Data, limit: int) -> Frame:
    """Accuracies by seed: without the penalty, as trained and stopped, and with it, stopped."""
    full, early = (_accuracies(data, network="plain", limit=at) for at in (LIMIT, limit))
    kept = _accuracies(data, network=BEST, limit=limit)
    return pd.DataFrame({"full": full, "early": early, "kept": kept})


def third(data: Data) -> Rows:
    """What the penalty keeps and what stopping early loses, of each seed and as a mean."""
    frame = _against(data, THIRD).reindex(list(SEEDS[BEST]))
    frame[["step", "epoch"]] = [_speedups(data, seed) for seed in frame.index]
    known = frame.dropna(subset=["full", "early", "kept"])
    means = [(f"mean of {len(known)}", known.mean(skipna=False))] if len(known) else []
    for seed, row in (*frame.iterrows(), *means):
        lost = row["full"] - row[["kept", "early"]]
        costs = lost["kept"] > 0
        over = lost["early"] / lost["kept"] if costs else "the penalty costs nothing"
        reached = [
            _explain_gap(data, network, seed=seed) if pd.isna(row[name]) else row[name]
            for name, network in (("full", "plain"), ("early", "plain"), ("kept", BEST))
        ]
        compared = [None] * 3 if lost.isna().any() else [*lost, over]
        yield str(seed), *reached, *compared, row["step"], row["epoch"]


def _speedups(data: Data, seed: int) -> list[float]:
    """Time of a step without the penalty over that with it; of an epoch, under like conditions."""
    steps = [_cell(data, "step_ms", reader=name, seed=seed) for name in ("plain", "regularised")]
    points = [data.get(network=name, seed=seed) for name in ("plain", BEST)]
    epochs = [None if point is None else point.get("epoch_seconds") for point in points]
    if None not in epochs and points[0]["conditions"] != points[1]["conditions"]:
        epochs = [None, None]
    return [a / b if a and b else float("nan") for a, b in (steps, epochs)]


def losses(data: Data) -> Rows:
    """Points lost by stopping at each limit, with the penalty and without, over common seeds."""
    for limit in LIMITS[:-1]:
        frame = _against(data, limit).dropna()
        if frame.empty:
            yield limit, NOT_RUN
            continue
        kept, early = (frame["full"].mean() - frame[name].mean() for name in ("kept", "early"))
        yield limit, kept, early, early / kept if kept > 0 else None, len(frame)


def list_accuracies(data: Data) -> Rows:
    """Table 2: the paper's rows, and ours."""
    for row in read_published(BAI_2021, "Table 2"):
        deviation = f" ± {row['deviation']:.1f}" if "deviation" in row else ""
        accuracy = f"{row['accuracy']:.1f}{deviation}"
        yield row["data"], row["model"], "paper", row["size"], accuracy, row.get("evals")
    for reader, (network, limit) in READERS.items():
        seeds, found = SEEDS[network], _accuracies(data, reader=reader).tolist()
        source, size = (_cell(data, name, network=network) for name in ("source", "parameters"))
        accuracy = mean_and_deviation(found) or _explain_gap(data, network)
        known = f"{len(found)} of {len(seeds)}"
        yield source or "CIFAR-10", WORDS[reader], "ours", size, accuracy, limit, known


def _bars(title: str, y: str, column: str, scale: float = 1, skip: str = "", **more: Any) -> Chart:
    """A bar for each reader that has the figure; costs are those of seed 0."""
    readers = [each for each in READERS if each != skip]
    names = [{"resnet": "ResNet", "plain": "MDEQ"}.get(each, each) for each in readers]
    bars = Bars(at="reader", places=readers, y=column, scale=scale, **more)
    return Chart(title=title, x="", y=y, marks=bars, names=names, zero=True)


COSTS = [
    Pivot(
        title="Figure 6: error, memory, run time",
        index={"reader": "network", "whose": "whose"},
        each="reader",
        values={
            "test error, %": mean("error", 100),
            "memory of a training step": of("step_bytes", 1 / MIB, "{:.1f} MiB"),
            "run time of inference, relative": of("relative", seed=0),
            "a batch read, ms": of("read_ms", seed=0),
            "a training step, ms": of("step_ms", seed=0),
        },
        words={"reader": WORDS, "whose": lambda rows: "ours"},
        above=[
            [row["row"], "paper", row["error"], f"{row['memory']:g} GB", row["time"]]
            for row in read_published(BAI_2021, "Figure 6")
        ],
        note="Run times relative to the explicit network (the paper's: ResNet-101). Ours: medians "
        "of the networks of seed 0. Memory: in float32, peak of forward and backward less "
        "parameters and gradients; with the penalty, that of a step which has it.",
    ),
    Pivot(
        title="Section 3.4: the solver's share of the memory of inference",
        index={"solver": "solver", "reader": "network"},
        each="peak_bytes",
        where={"cost": "memory"},
        values={
            "peak, MiB": mean("peak_bytes", 1 / MIB),
            "of which the solver's, MiB": mean("history_bytes", 1 / MIB),
            "the solver's share, %": mean("share", 100),
            f"MDEQ at {LIMIT} over this": "saving",
        },
        words={"reader": WORDS, "solver": SOLVERS},
        note="In float32: peak of a forward without gradients, less parameters. The solver's: "
        "what is more than plain iteration takes, which keeps no history. The paper says of "
        "its transformer that the penalty saves over half of the memory of inference with "
        "Broyden.",
    ),
    _bars("Fig. 6: test error", "%", "error", 100),
    _bars("Fig. 6: memory of a training step", "MiB", "step_bytes", 1 / MIB, skip="stopped"),
    _bars("Fig. 6: run time of inference", "ResNet = 1", "relative", where={"seed": 0}),
    _bars(
        title="Section 3.4: the solver's share of inference memory",
        y="%",
        column="share",
        scale=100,
        skip="resnet",
        by="solver",
        label=SOLVERS,
    ),
]
