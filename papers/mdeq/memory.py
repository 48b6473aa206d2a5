"""MDEQ at equilibrium and unrolled, beside networks of its size."""

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.run import memory
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import NOT_RUN, Chart, Lines, Table
from equilibria.run.trainer import seed_all
from papers.mdeq.common import NAMES, recipe_of

MIB = 2**20
DEPTHS = (6, 12, 18, 36)
DEEP = {"deq": "at equilibrium", "unrolled": "unrolled", "checkpointed": "checkpointed"}


def steps(context: Context) -> Iterable[dict[str, Any]]:
    """Bytes of a step of a new network by `how` and `evals`, once of an explicit one.

    Of the `bytes` the solver keeps `history_bytes`; the first row has `batch` and `parameters`.
    """
    (recipe,) = context.reads
    task = context.tasks(recipe)
    seed_all(0)
    model = task.model(recipe.model, **recipe.layer())
    batch = task.feed(recipe.rows, recipe.seed).batch(0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    yield {"source": task.source, "batch": recipe.rows, "parameters": parameters}
    for each in memory.measure(model, task, batch, DEPTHS):
        figures = {"bytes": each.bytes, "history_bytes": each.history_bytes}
        yield {"how": each.kind, "evals": each.evals, **figures}


def _rows(data: Data) -> Iterable[Sequence[Any]]:
    rows = data.series("how").to_dict("records")
    taken = {(row["network"], row["how"], row["evals"]): row["bytes"] for row in rows}
    resnet = taken.get(("resnet", "explicit", 0))
    for network, words in NAMES.items():
        point = data.get(network=network)
        if point is None:
            yield words, None, NOT_RUN
            continue
        for row in (row for row in rows if row["network"] == network):
            head, mib = (words, point["parameters"]), row["bytes"] / MIB
            if row["how"] == "explicit":
                yield *head, "as it is", None, mib
                continue
            unrolled = taken.get((network, "unrolled", row["evals"]))
            shares = [whole and 100 * row["bytes"] / whole for whole in (unrolled, resnet)]
            yield *head, DEEP[row["how"]], row["evals"], mib, row["history_bytes"] / MIB, *shares


def _levels(data: Data) -> list[tuple[str, float]]:
    rows = data.series("how", how="explicit").to_dict("records")
    return [(NAMES[row["network"]], row["bytes"] / MIB) for row in rows]


def _lines(network: str, style: Any) -> Lines:
    where = {"network": network, "how": list(DEEP)}
    label = {how: f"{NAMES[network]}, {words}" for how, words in DEEP.items()}
    drawn = {"x": "evals", "y": "bytes", "by": ["how"], "scale": 1 / MIB}
    return Lines(where=where, label=label, style=style, **drawn)


STUDY = Study(
    item="Figure 3.5, right; section 3.3.4",
    title="Memory of a training step",
    points=lambda scale: [
        Point(
            {"network": network},
            [steps],
            reads=[recipe_of("cifar10", network, scale)],
            settings={"depths": DEPTHS},
            minutes=4 if network in ("mdeq", "single") else 0.5,
        )
        for network in NAMES
    ],
    views=[
        Table(
            title="Memory of a training step, MiB",
            columns=[
                *("network", "parameters", "how", "evaluations", "MiB", "solver's history, MiB"),
                *("of the same cell unrolled, %", "of the ResNet's, %"),
            ],
            rows=_rows,
            note="Peak bytes of forward and backward less parameters and gradients, for a batch of "
            "the recipe on CIFAR-10 (32 images at CPU scale); every solve takes exactly the given "
            "number of evaluations, and its history is part of the MiB. An explicit network has no "
            "depth to choose: a neural ODE with new weights takes the evaluations that its "
            "tolerance asks for. The thesis reports over 60 % less than ResNets and DenseNets "
            "at the sizes of its tables.",
        ),
        Chart(
            title="memory of a training step",
            x="evaluations",
            y="MiB",
            marks=[_lines("mdeq", "marked"), _lines("single", "dashed")],
            levels=_levels,
            log_y=True,
            whole_x=True,
        ),
    ],
)
