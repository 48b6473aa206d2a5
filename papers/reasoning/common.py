"""The networks that are trained on small instances, and what is measured of them on larger ones."""

from __future__ import annotations

import functools
import itertools
import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria import Starts
from equilibria.nn.using import in_eval_mode
from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.depth import measure_depth
from equilibria.run.path import RandomPath
from equilibria.run.studies.measures.epochs import summary
from equilibria.run.studies.results import Frame, select
from equilibria.run.studies.study import Context, Measure, Point
from equilibria.run.studies.training import Trained, Training
from equilibria.run.studies.views import (
    Cell,
    Chart,
    Lines,
    Pivot,
    View,
    mean,
    number,
    spread,
)
from equilibria.run.studies.views.tables import Column
from equilibria.solve import Auto, Picard, Solver, SolveWarning, Status
from equilibria.zoo.reasoning.model.reasoner import (
    FixedDepthConfig,
    Reasoner,
    SequenceLSTMConfig,
    read_places,
)
from papers.measures.counterpart import with_model

EQUILIBRIUM = "equilibrium"
EXACT = "equilibrium, exact gradient"

NETWORKS: Mapping[str, Mapping[str, Any] | None] = {
    EQUILIBRIUM: None,
    EXACT: None,
    "tied, 8 deep": {"depth": 8},
    "tied, 16 deep": {"depth": 16},
    "tied, progressive": {"depth": 28, "progressive": True},
    "untied, 8 deep": {"depth": 8, "tied": False},
    "untied, 8 deep, as small": {"depth": 8, "tied": False, "width": 10},
    "LSTM": {},
}
"""What learns: the recipe's own network, or one of fixed depth with these fields, or an LSTM."""

EXACT_OPTIONS = ("--path.gradient", "exact", "--path.noise", "0")
"""Options of `EXACT`: no random path, and the gradient of the equilibrium."""

SIZES = {"of": "sizes"}
"""Rows of `measure_sizes` and `measure_iterated`."""

TIED = ("tied, 8 deep", "tied, 16 deep", "tied, progressive")
"""Those that can be iterated longer than in training."""

BREADTH = 500
"""Instances that are solved from several starts."""

SOLVERS: Mapping[str, Solver] = {
    "plain": Picard(max_evals=4000, patience=None),
    "default": Auto(),
    "default, max_evals": Auto(max_evals=4000),
}
"""Plain iteration to the end, and the default solver as it is and with a longer budget."""


def point(
    recipe: str,
    network: str,
    seed: int,
    measures: Iterable[Measure],
    minutes: float,
    options: Iterable[str] = (),
    **factors: Any,
) -> Point:
    """Return the point of a network that is trained by a recipe with a seed.

    A network that is not the recipe's own takes at least as many steps, and at least as many
    evaluations of the cell: its epochs are multiplied by the ratio of `count_step`, where that is
    above 1. An LSTM takes as many steps.
    """
    gradient = EXACT_OPTIONS if network == EXACT else ()
    own = _load(recipe, ("--seed", str(seed), *options, *gradient))
    whole, reads = own, ()
    if NETWORKS[network] is not None:
        whole, reads = _replace_network(own, network), (own,)
    return Point(
        {"network": network, "seed": seed, **factors},
        [summary, *measures],
        {"run": Training(whole, minutes)},
        reads=reads,
    )


def _replace_network(own: Any, network: str) -> Any:
    if network == "LSTM":  # it has no evaluations to count
        return with_model(own, SequenceLSTMConfig(width=own.model.width), network)
    same = {name: getattr(own.model, name) for name in ("cell", "width", "hidden", "heads")}
    fields: Any = {**same, **(NETWORKS[network] or {})}
    other = with_model(own, FixedDepthConfig(**fields), network)
    factor = max(1.0, count_step(own) / count_step(other))
    return replace(other, epochs=math.ceil(own.epochs * factor))


def count_step(recipe: Any) -> float:
    """Return what a training step costs, in evaluations of the cell.

    An evaluation counts 1 forward and 2 backward. An equilibrium network on a random path takes n/2
    evaluations without a gradient on average, n the most in `budget`, and `steps` with one. A
    network of fixed depth takes all its evaluations with a gradient. The second loss of progressive
    training has evaluations of both kinds. The width of a cell is not counted.
    """
    model = recipe.model
    if isinstance(model, FixedDepthConfig):
        skipped, followed = (model.depth - 1) / 2, 1 + (model.depth - 1) / 4
        return 3 * model.depth + model.progressive * (skipped + 3 * followed)
    path: RandomPath = recipe.path
    return sum(path.budget) / 2 + 3 * path.steps


@functools.cache
def _load(name: str, words: tuple[str, ...]) -> Any:
    return recipes.load(name, list(words))


def choose_measures(network: str, *own: Measure) -> list[Measure]:
    """Return what is measured of a network; `own` of the equilibrium network alone."""
    if network == EQUILIBRIUM:
        return [measure_sizes, *own, measure_adaptive]
    return [measure_iterated if network in TIED else measure_sizes]


def list_splits(run: Trained) -> dict[str, int]:
    """Return the test splits, with the size of their instances."""
    config: Any = run.recipe.task
    splits = [each for each in run.task.splits if each.startswith("test")]
    return {each: int(each.partition("-")[2] or config.size) for each in splits}


def _evaluate(run: Trained, model: Any, split: str, solver: Solver | None = None) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)
        return evaluation.evaluate(
            model,
            run.task,
            evaluation.accelerator("float32"),
            split=split,
            batch_size=run.recipe.eval_batch_size,
            solver=solver,
        )


def measure_sizes(context: Context) -> Iterable[dict[str, Any]]:
    """One row for each size: `exact` and `places`, shares that are right, and the cost of a solve:
    `evals_here`, and `settled`, the share that converged."""
    run = context.run
    model = run.load().model
    for split, size in list_splits(run).items():
        found = _evaluate(run, model, split)
        forward = found.get("forward") or {}
        yield {
            "of": "sizes",
            "size": size,
            "exact_here": found["exact"],
            "places": found["accuracy"],
            "evals_here": (forward.get("evals") or {}).get("mean"),
            "settled": (forward.get("status") or {}).get("CONVERGED"),
        }


def measure_iterated(context: Context) -> Iterable[dict[str, Any]]:
    """One row for each size of the exact answers of a tied network, `exact_here`, after as many
    applications as suit it best, and `times`, their number: up to the `max_evals` of the
    equilibrium network, chosen on the first half of the instances and judged on the other."""
    run = context.run
    (own,) = context.reads
    model: Any = run.load().model
    stops = list_stops(cast(Any, own.solver).max_evals)
    for split, size in list_splits(run).items():
        right = [
            torch.stack(
                [_judge(run, each, batch.targets) for each in iterate(model, batch.inputs, stops)]
            )
            for batch in run.task.batches(split, 250)
        ]
        yield {"of": "sizes", "size": size, **choose_times(torch.cat(right, 1), stops)}


def list_stops(most: int) -> list[int]:
    """Return numbers of evaluations from 1 to `most`, each about 1.4 times the one before."""
    return sorted({*(round(2 ** (k / 2)) for k in range(int(2 * math.log2(most)) + 1)), most})


def choose_times(right: Tensor, stops: Sequence[int]) -> dict[str, Any]:
    """Return `times`, the first of the best of `stops` on the first half of the instances, and
    `exact_here`, the share that is right after as many on the second half.

    Args:
        right: `(stops, instances)`, whether an answer is right.
        stops: numbers of evaluations.
    """
    first, second = (half.double().mean(1) for half in right.tensor_split(2, dim=1))
    best = int(first.argmax())
    return {"exact_here": float(second[best]), "times": stops[best]}


def iterate(model: Any, x: Tensor, stops: Sequence[int]) -> list[Tensor]:
    """Return the logits after each number in `stops` of plain evaluations of a cell, from 0.

    Args:
        model: an equilibrium network, or a tied one.
        x: instances.
        stops: increasing.
    """
    found = []
    cell = model.deq.cell if isinstance(model, Reasoner) else model.cells[0]
    with in_eval_mode(model), torch.no_grad():
        u = model.encoder(x)
        z = u.new_zeros(len(u), model.config.width, *u.shape[2:])
        for before, stop in itertools.pairwise((0, *stops)):
            for _ in range(stop - before):
                z = cell(z, u)
            found.append(read_places(model.head, z))
    return found


def _judge(run: Trained, answer: Tensor, targets: Tensor) -> Tensor:
    found = run.task.judge(answer, targets)
    assert found is not None
    return found


def measure_solvers(context: Context, sizes: Sequence[int]) -> Iterable[dict[str, Any]]:
    """One row for each of `sizes` and `SOLVERS`: `exact_here`, `settled`, `evals_here`."""
    run = context.run
    model = run.load().model
    for split, size in list_splits(run).items():
        if size not in sizes:
            continue
        for name, solver in SOLVERS.items():
            found = _evaluate(run, model, split, solver)
            forward = found["forward"]
            yield {
                "of": "solvers",
                "size": size,
                "solver": name,
                "exact_here": found["exact"],
                "settled": forward["status"]["CONVERGED"],
                "evals_here": forward["evals"]["mean"],
            }


def measure_path(context: Context, split: str = "test") -> Iterable[dict[str, Any]]:
    """What the answers on a split owe to depth: a row for each number of evaluations `stop`, with
    `exact_here`; one for each kind of `start`; and one of the whole, with `gap`, points between two
    evaluations and the end, `correlation` of evaluations and difficulty, and `settled`."""
    run = context.run
    model: Any = run.load().model
    accelerator = evaluation.accelerator("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)
        report = measure_depth(model, run.task, accelerator, split=split)
    size = list_splits(run)[split]
    for stop, exact in report.at.items():
        yield {"of": "stops", "size": size, "stop": stop, "exact_here": exact}
    yield {"of": "starts", "size": size, "start": "its own", "exact_here": report.figure}
    for kind, start in report.starts.items():
        same = {"same": start.same, "exact_here": start.figure}
        yield {"of": "starts", "size": size, "start": kind, **same}
    yield {
        "of": "depth",
        "size": size,
        "gap": report.figure - report.at.get(2, report.figure),
        "correlation": report.correlation,
        "settled": report.converged,
        "evals_here": sum(report.evals) / len(report.evals),
    }


def measure_breadth(context: Context, split: str = "test", count: int = 4) -> dict[str, Any]:
    """Exact answers by one start and by several, of which the residual or the stability chooses:
    `one`, `by_residual`, `by_stability`; `any_start`, the share in which some start is right; and
    `auroc` of the residual of single starts against their being right, of all and of those that
    converged, `auroc_converged`."""
    run = context.run
    model: Any = run.load().model
    batch = run.task.sample(split, BREADTH)
    right: dict[str, Tensor] = {}
    with in_eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)
        operands = model.inject(batch.inputs)

        def judge(value: Any) -> Tensor:
            return _judge(run, model.answer(value, batch.inputs), batch.targets)

        right["one"] = judge(model.deq(*operands).value)
        starts: Any = None
        for choice in ("residual", "stability"):
            torch.manual_seed(0)
            solution = model.deq(*operands, starts=Starts(count=count, select=choice))
            right[f"by_{choice}"] = judge(solution.value)
            starts = solution.starts
        each = torch.stack([judge(value) for value in starts.value])
    converged = starts.status == Status.CONVERGED
    return {
        **{name: float(found.double().mean()) for name, found in right.items()},
        "any_start": float(each.any(0).double().mean()),
        "distinct": float(starts.count_distinct().double().mean()),
        "auroc": area_under_curve(-starts.residual.flatten(), each.flatten()),
        "auroc_converged": area_under_curve(-starts.residual[converged], each[converged]),
    }


def area_under_curve(score: Tensor, positive: Tensor) -> float | None:
    """Return the chance that a positive has a higher score than a negative, ties counted half;
    None where all are one or the other. A score that is NaN is the lowest."""
    from scipy.stats import rankdata

    wins = int(positive.sum())
    losses = positive.numel() - wins
    if not wins or not losses:
        return None
    known = score.double().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    ranks = torch.from_numpy(rankdata(known.numpy()))
    return float((ranks[positive].sum() - wins * (wins + 1) / 2) / (wins * losses))


def measure_adaptive(context: Context, split: str = "test") -> dict[str, Any]:
    """Seconds of the solves of a batch, `dropping` samples that have finished and in `lockstep`,
    each the median of three in turns, their `ratio`, and `mean_evals` and `most_evals`."""
    run = context.run
    model: Any = run.load().model
    batch = run.task.sample(split, 256)
    taken: dict[bool, list[float]] = {True: [], False: []}
    with in_eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)
        operands = model.inject(batch.inputs)
        solution: Any = None
        for _ in range(3):
            for dropping, times in taken.items():
                model.deq.drop_finished = dropping
                begin = time.perf_counter()
                solution = model.deq(*operands)
                times.append(time.perf_counter() - begin)
    seconds = {dropping: sorted(times)[1] for dropping, times in taken.items()}
    evals = solution.stats.evals
    return {
        "dropping": seconds[True],
        "lockstep": seconds[False],
        "ratio": seconds[True] / seconds[False],
        "mean_evals": float(evals.double().mean()),
        "most_evals": int(evals.max()),
        "finished": float((solution.status == Status.CONVERGED).double().mean()),
    }


# --- views ----------------------------------------------------------------------------------------


def by_size(title: str, sizes: Sequence[int], lead: str | None = None, **factors: Any) -> Pivot:
    """Return the table of exact answers, a row for each network, a column for each size.

    Args:
        title: of the table.
        sizes: of instances.
        lead: a factor that tells rows apart beside the network.
        factors: values that the rows must have.
    """
    return Pivot(
        title=title,
        index={**({lead: lead} if lead else {}), "network": "network"},
        where=factors,
        values={
            "seeds": number("parameters"),
            "parameters": "parameters",
            **{f"{size}": _exact_at(size) for size in sizes},
        },
        whole=True,
    )


def _exact_at(size: int) -> Column:
    whole = spread("exact_here", 100)

    def cell(rows: Frame) -> Cell:
        return whole(select(rows, {**SIZES, "size": size}))

    return cell


def size_chart(title: str, x: str, **factors: Any) -> Chart:
    """Return exact answers against size, a line for each network and a band of its seeds."""
    where = {**SIZES, **factors}
    lines = Lines("size", "exact_here", by=["network"], where=where, band=True, style="marked")
    return lines.chart(title, x, "instances solved", percent=True, log_x=True)


def depth_views(of: str) -> list[View]:
    """Return what answers owe to depth, for instances `of` a kind."""
    where = {"network": EQUILIBRIUM}
    stops = Lines("stop", "exact_here", where={**where, "of": "stops"}, band=True, style="marked")
    return [
        stops.chart(
            f"Answers read from the iterate: {of}",
            "evaluations",
            "instances solved",
            percent=True,
            log_x=True,
        ),
        Pivot(
            title=f"From other starts: {of}",
            index={"start": "start"},
            each="start",
            where=where,
            values={
                "solved, %": spread("exact_here", 100),
                "the same answer, %": spread("same", 100),
            },
        ),
        Pivot(
            title=f"Use of depth: {of}",
            index={"network": "network"},
            each="gap",
            where=where,
            values={
                "gained after two evaluations, points": spread("gap", 100),
                "rank correlation of evaluations and difficulty": spread("correlation", 1, ".2f"),
                "converged, %": spread("settled", 100),
                "evaluations": spread("evals_here"),
            },
        ),
        Pivot(
            title=f"Finished samples leave the batch, or stay: {of}",
            index={"network": "network"},
            where=where,
            values={
                "leave, s": spread("dropping", 1, ".2f"),
                "stay, s": spread("lockstep", 1, ".2f"),
                "ratio": spread("ratio", 1, ".2f"),
                "evaluations, mean": spread("mean_evals"),
                "most": mean("most_evals"),
            },
        ),
    ]


def breadth_views() -> list[View]:
    """Return what several starts are worth."""
    pivot = functools.partial(Pivot, index={"network": "network"}, where={"network": EQUILIBRIUM})
    whole = pivot(
        title="Several starts",
        values={
            "one start, %": spread("one", 100),
            "four, by residual, %": spread("by_residual", 100),
            "four, by stability, %": spread("by_stability", 100),
            "some start is right, %": spread("any_start", 100),
            "equilibria found": spread("distinct", 1, ".2f"),
        },
    )
    ranking = pivot(
        title="Whether the residual tells right answers from wrong ones: AUROC",
        values={
            "all starts": spread("auroc", 1, ".3f"),
            "converged starts": spread("auroc_converged", 1, ".3f"),
        },
    )
    return [whole, ranking]
