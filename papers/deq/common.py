"""What the studies of Bai et al. 2019 share: trainings, measures of quality, and tables."""

import functools
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.examination import examine
from equilibria.run.recipe import Recipe
from equilibria.run.studies import views
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures import timing
from equilibria.run.studies.measures.timing import ROUNDS
from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Context, Scale
from equilibria.run.studies.training import Training
from equilibria.run.studies.views.tables import Column
from equilibria.solve import SolveWarning, Status
from equilibria.zoo.language.model.base import SequenceModel
from equilibria.zoo.synthetic.data.drawn import VOCABULARY
from papers.measures import counterpart
from papers.published import BAI_2019, read_published

# --- The trainings that studies of Bai et al. 2019 share ------------------------------------------

LAYERS = 12
"""Layers of the weight-tied stack that the equilibrium network is compared with."""

CELLS = {"transformer": "lm-ptb", "trellisnet": "lm-ptb-trellisnet"}
"""The recipe of each cell on Penn Treebank."""

SEEDS: Mapping[str, Sequence[int]] = {"transformer": (0, 1, 2), "trellisnet": (0,)}
"""Seeds with which each cell is trained, the equilibrium network and the stack alike."""

COPY_SEEDS = (0, 1, 2)
RECURRENT = ("lstm", "gru")


@functools.cache
def load_recipe(name: str, scale: Scale, *options: str) -> Recipe:
    """Return the shipped recipe `name`, its -gpu size where `scale` asks for it and there is one.

    Args:
        name: of the recipe at CPU scale.
        scale: which of its sizes.
        options: overrides, as on the command line.
    """
    larger = f"{name}-gpu"
    if scale == "gpu" and larger in recipes.available():
        name = larger
    return recipes.load(name, options)


def language(cell: str, scale: Scale, seed: int = 0, *, tied: bool = False) -> Training:
    """Return the training of a network on Penn Treebank.

    Args:
        cell: one of `CELLS`.
        scale: size of the recipe.
        seed: of the training.
        tied: the weight-tied stack of `LAYERS` layers in place of the equilibrium network.
    """
    recipe = load_recipe(CELLS[cell], scale, "--seed", str(seed))
    if tied:
        recipe = counterpart.explicit(recipe, layers=LAYERS)
    return Training(recipe, {"cpu": 15, "gpu": 60}[scale])


def copy_memory(network: str, scale: Scale, seed: int) -> Training:
    """Return a training on copy memory: of "deq", or of an "lstm" or "gru" of its size."""
    recipe = load_recipe("copy-memory", scale, "--seed", str(seed))
    if network != "deq":
        recipe = counterpart.recurrent(recipe, network, VOCABULARY)
    return Training(recipe, 6 if network == "deq" else 1)


# --- convergence, gradients, and times in turns ---------------------------------------------------


@identified_as("_quality.core")
def core(context: Context) -> dict[str, int]:
    """`core`: parameters of the network without embedding and softmax."""
    recipe = context.run.recipe
    with torch.device("meta"):
        model = cast(SequenceModel, recipe.model.build(**recipe.layer()))
    words = sum(each.numel() for each in model.lexicon.parameters())
    return {"core": context.run.info["parameters"] - words}


@identified_as("_quality.quality")
def quality(context: Context, *, rtol: float) -> dict[str, Any]:
    """How a trained network's solves of the test text end, and how right its gradient is.

    `pieces` of a segment, each of which is a solve; the shares of them, and of the rows of
    segments, all of whose pieces must, that converge to `rtol`: `pieces_converged` and
    `rows_converged`; the doctor's `cosine` of the gradient by the recipe's adjoint and the exact.
    """
    if context.run.diverged:
        return {}
    run = context.run.load()
    accelerator = evaluation.accelerator(run.recipe.precision)
    model: Any = run.model.to(accelerator.device)
    solver = replace(model.deq.eval_solver or model.deq.solver, rtol=rtol)
    size = run.recipe.eval_batch_size
    statuses: list[Tensor] = []

    def listen(_model: Any, _inputs: Any, prediction: Any) -> None:
        statuses.append(torch.stack([each.status for each in prediction.solutions]).cpu())

    with model.register_forward_hook(listen):
        result = evaluation.evaluate(model, run.data, accelerator, batch_size=size, solver=solver)
    rows = [
        (status == Status.CONVERGED).all(0)[(batch.targets >= 0).flatten(1).any(1)]
        for status, batch in zip(statuses, run.data.batches("test", size), strict=True)
    ]  # that hold text: all pieces converged?
    model.cpu()  # where the doctor's batch is
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # the examination counts them
        cosine = examine(run).gradient.cosine
    return {
        "pieces": len(statuses[0]),
        "pieces_converged": result["forward"]["status"]["CONVERGED"],
        "rows_converged": float(torch.cat(rows).double().mean()),
        "cosine": cosine,
    }


@identified_as("_quality.times")
def times(context: Context) -> dict[str, Any]:
    """Milliseconds of training steps and of reading a segment of test text, interleaved.

    For each run NAME, `NAME_read`, and of trained networks what `timing.steps` gives: `NAME_plain`,
    `NAME_penalized`, `NAME_step`; of new ones, behind any warm-up, `NAME_untrained`.
    """
    runs, found = context.runs, {"threads": torch.get_num_threads()}
    new = {name: run.trainer(trained=False) for name, run in runs.items()}
    old = {name: run.trainer(trained=True, before_end=timing.SPENT) for name, run in runs.items()}
    found |= {f"{name}_untrained": each["step"] for name, each in timing.steps(new).items()}
    for name, taken in timing.steps(old).items():
        found |= {f"{name}_{kind}": taken[kind] for kind in ("plain", "penalised", "step")}
    readers = {name: timing.reader(trainer) for name, trainer in old.items()}
    return found | {f"{name}_read": ms for name, ms in timing.milliseconds(readers).items()}


# --- Views that set each cell's equilibrium network against its weight-tied stack -----------------

TOLERANCE = 1e-2
NAMES = {"transformer": "Transformer", "trellisnet": "TrellisNet"}
STACKS = {cell: f"weight-tied {name}, {LAYERS} layers" for cell, name in NAMES.items()}

DEQ, TIED, BOTH = ([f"{kind}-{cell}" for cell in CELLS] for kind in ("deq", "tied", "both"))
"""Levels of the factor `network`; the last is of points that time a pair of them together."""


def _against(column: str, other: str | None = None, **options: Any) -> Column:
    return views.ratio(
        views.of(column, network=DEQ), views.of(other or column, network=TIED), **options
    )


def _compare_times(column: str, other: str = "tied_step", **options: Any) -> Column:
    return views.ratio(views.of(column, network=BOTH), views.of(other, network=BOTH), **options)


_seconds = views.time_ratio({"network": DEQ}, {"network": TIED})


def _conditions(rows: Frame) -> views.Cell:
    known = [views.of("conditions", network=each)(rows) for each in (DEQ, TIED)]
    return (
        None
        if {None, views.NOT_RUN} & {*known}
        else " against ".join(map(str, dict.fromkeys(known)))
    )


def _median_seconds(rows: Frame) -> views.Cell:
    known = [x for _, seed in rows.groupby("seed") if isinstance(x := _seconds(seed), float)]
    return f"{statistics.median(known):.2f}x" if known else None


COMPARISON = views.Pivot(
    title=f"Equilibrium against {LAYERS} weight-tied layers after the same tokens",
    index={"cell": "cell", "seed": "seed"},
    where={"data": "ptb"},
    words={"cell": NAMES},
    values={
        "perplexity, DEQ": views.of("perplexity", network=DEQ),
        "tied": views.of("perplexity", network=TIED),
        "ratio": _against("perplexity"),
        "pieces a segment": views.of("pieces", network=DEQ),
        "pieces converged, %": views.of("pieces_converged", 100, network=DEQ),
        "rows converged, %": views.of("rows_converged", 100, network=DEQ),
        "adjoint cosine": views.of("cosine", network=DEQ),
        "memory, ratio": _against("step_bytes"),
        "with the penalty": _against("penalised_bytes", "step_bytes", absent="none"),
        "training time, ratio": _seconds,
        "on": _conditions,
        "a step, interleaved": _compare_times("deq_step"),
        "plain": _compare_times("deq_plain"),
        "penalised": _compare_times("deq_penalised", absent="none"),
    },
    note=f"Test text of Penn Treebank. Converged: share of the solves to {TOLERANCE:g}, one for "
    "each piece of a segment, and of the rows of segments all of whose pieces converge. Cosine: of "
    "the gradient by the recipe's adjoint and the exact one, by the doctor. With the penalty: a "
    "step with the Jacobian penalty holds a second backward graph. Training time: all steps, where "
    "threads and machine are the same. A step, interleaved: as in Table 4, first seed.",
)

TIMES = views.Pivot(
    title="Table 4: time of the equilibrium network, the explicit one being 1",
    index={"cell": "explicit network"},
    where={"data": "ptb"},
    words={"cell": STACKS},
    values={
        "whose": views.of("threads", spec="ours, {:g} threads", network=BOTH),
        "a training step": _compare_times("deq_step", spec="{:.2f}x"),
        "reading": _compare_times("deq_read", "tied_read", spec="{:.2f}x"),
        "a plain step": _compare_times("deq_plain", spec="{:.2f}x"),
        "a penalised step": _compare_times("deq_penalised", spec="{:.2f}x"),
        "a step, untrained": _compare_times("deq_untrained", "tied_untrained", spec="{:.2f}x"),
        "all steps of the training": _median_seconds,
    },
    above=[
        (row["row"], "paper", f"{row['training']:.2f}x", f"{row['inference']:.2f}x")
        for row in read_published(BAI_2019, "Table 4")
    ],
    note=f"Ours: medians of {ROUNDS} steps of trained networks, interleaved in one process, with "
    "the Jacobian penalty and without apart; a training step is (1 - p) plain + p penalised, p "
    "being the recipe's share of steps with the penalty. All steps: of the trainings, median over "
    "the seeds that ran on the same machine and threads. The paper's explicit networks are untied; "
    "the thesis of 2022 prints 3.24x and 2.56x for the Transformer.",
)


# --- Views of the trainings on copy memory, Table 1 -----------------------------------------------

NETWORKS = {"deq": "DEQ-Transformer", "lstm": "LSTM", "gru": "GRU"}
PUBLISHED = read_published(BAI_2019, "Table 1")


def better(rows: Frame) -> views.Cell:
    """The smaller loss of the recurrent networks, or why it is not known."""
    losses: list[Any] = [views.of("loss", network=name)(rows) for name in RECURRENT]
    return next(
        (reason for reason in (views.NOT_RUN, views.DIVERGED) if reason in losses), None
    ) or min(losses)


AGAINST = views.Pivot(
    title="Copy memory: equilibrium against recurrent networks of its size",
    index={"seed": "seed"},
    where={"data": "copy-memory"},
    values={
        **{name.upper(): views.of("loss", network=name) for name in NETWORKS},
        "DEQ / the better other": views.ratio(views.of("loss", network="deq"), better),
    },
    note="Test loss. The recipe copy-memory, at either scale: it has no -gpu size.",
)

TABLE_1 = views.Pivot(
    title="Table 1: copy memory, T = 400",
    index={"network": "network", "seed": "whose"},
    where={"data": "copy-memory"},
    words={"network": NETWORKS, "seed": {seed: f"ours, seed {seed}" for seed in COPY_SEEDS}},
    values={
        "parameters": "parameters",
        "test loss": views.of("loss"),
        "minutes": views.first("seconds", 1 / 60),
    },
    above=[(row["row"], "paper", row["size"], row["loss"]) for row in PUBLISHED],
    note="Cross-entropy in nats, mean over all T + 20 positions (the paper does not say "
    "over which it takes its own). The widths of LSTM and GRU bring their parameters "
    "nearest to the equilibrium network's; they are trained alike.",
)

CHART = views.Lines(
    "epoch",
    "test_loss",
    by=["seed", "network"],
    where={"data": "copy-memory"},
    label=lambda seed, network: "" if seed else network.upper(),
    colors={name: place for place, name in enumerate(NETWORKS)},
).chart(
    "copy memory: test loss, three seeds",
    "epoch",
    "nats",
    levels=[(f"{r['row']}, paper", r["loss"]) for r in PUBLISHED if r["row"] != "TCN"],
    log_y=True,
    whole_x=True,
)
