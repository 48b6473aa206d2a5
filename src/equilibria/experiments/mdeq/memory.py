"""Figure 3.5, right, and section 3.3.4: memory of a training step against evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.mdeq.networks import DATA, NETWORKS, recipe_of
from equilibria.experiments.published import BAI_2022
from equilibria.train import memory
from equilibria.train import recipe as recipes
from equilibria.train.step import seed_all

__all__ = ["EXPERIMENT", "cases", "show"]

IMAGES = "cifar10"
DEPTHS = (6, 12, 18, 36)
KINDS = {"deq": "at equilibrium", "unrolled": "unrolled", "checkpointed": "checkpointed"}
MIB = 2**20


def cases(scale: Scale) -> Sequence[Case]:
    """One step of each network; the equilibrium networks at each depth, and unrolled to it."""
    return [
        Case(
            key=kind,
            description=f"measures training steps of the {network.words}",
            minutes=4 if kind in ("mdeq", "single") else 0.5,
            run=_measured(kind, scale),
            settings={
                "recipe": recipes.dump(recipe_of(IMAGES, kind, scale)),
                "depths": DEPTHS,
            },
        )
        for kind, network in NETWORKS.items()
    ]


def _measured(kind: str, scale: Scale) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        recipe = recipe_of(IMAGES, kind, scale)
        task = recipe.task.load(place.data_dir)
        seed_all(0)
        model = task.model(recipe.model, **recipe.layer())
        batch = task.feed(recipe.batch_size, recipe.seed).batch(0)
        points = memory.measure(model, task, batch, DEPTHS)
        return {
            "source": task.source,
            "batch": recipe.batch_size,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "points": [asdict(point) for point in points],
        }

    return run


def show(done: Results) -> Page:
    """Bytes against evaluations, the explicit networks as levels."""
    return Page([_table(done)], [_panel(done)])


def _table(done: Results) -> Table:
    rows: list[list[Any]] = []
    source, size = DATA[IMAGES].words, ""
    levels = {kind: _bytes(done, kind, "explicit") for kind in NETWORKS}
    for kind, network in NETWORKS.items():
        case = done.get(kind)
        if case is None:
            rows.append([network.words, None, NOT_RUN, *[None] * 5])
            continue
        source, size = case.value["source"], f", {case.value['batch']} images"
        count = case.value["parameters"]
        if levels[kind] is not None:
            rows.append([network.words, count, "as it is", None, levels[kind], *[None] * 3])
            continue
        for how, words in KINDS.items():
            for depth in DEPTHS:
                taken = _bytes(done, kind, how, depth)
                rows.append(
                    [
                        network.words,
                        count,
                        words,
                        depth,
                        taken,
                        _bytes(done, kind, how, depth, "history_bytes"),
                        _share(taken, _bytes(done, kind, "unrolled", depth)),
                        _share(taken, levels["resnet"]),
                    ]
                )
    return Table(
        title="Memory of a training step, MiB",
        columns=[
            *("network", "parameters", "how", "evaluations", "MiB"),
            *("of which the solver's history", "of the same cell unrolled, %", "of ResNet's, %"),
        ],
        rows=rows,
        note=f"{source}{size}. Peak bytes of forward and backward less parameters and gradients; "
        "each solve takes exactly as many evaluations as stand there. An explicit network has no "
        "depth to choose: a neural ODE takes the evaluations that its tolerance asks for with new "
        "weights. The thesis reports more than 60 % less than ResNets and DenseNets at the sizes "
        "of its tables.",
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else 100 * part / whole


def _bytes(
    done: Results, kind: str, how: str, depth: int | None = None, figure: str = "bytes"
) -> float | None:
    case = done.get(kind)
    for point in case.value["points"] if case is not None else ():
        if point["kind"] == how and depth in (None, point["evals"]):
            return point[figure] / MIB
    return None


def _panel(done: Results) -> Panel:
    levels = [
        (network.words, mib)
        for kind, network in NETWORKS.items()
        if (mib := _bytes(done, kind, "explicit")) is not None
    ]
    return Panel(
        title="memory of a training step",
        x="evaluations",
        y="MiB",
        series=[
            Series(
                label=f"{NETWORKS[kind].words}, {words}",
                x=DEPTHS,
                y=[_bytes(done, kind, how, depth) for depth in DEPTHS],
                colour=colour,
                style="marked" if kind == "mdeq" else "dashed",
            )
            for kind in ("mdeq", "single")
            for colour, (how, words) in enumerate(KINDS.items())
        ],
        log_y=True,
        whole_x=True,
        levels=levels,
    )


EXPERIMENT = Experiment(
    name="mdeq/memory",
    paper=BAI_2022,
    subject="Figure 3.5, right; section 3.3.4",
    description="Memory of a step: MDEQ at equilibrium and unrolled, beside networks of its size.",
    cases=cases,
    show=show,
)
