"""Figure 4: trained weight-tied stacks converge with depth, slower on longer sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from equilibria.bench.record import Table
from equilibria.experiments import measure, trainings
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page, Scale
from equilibria.experiments.published import BAI_2019
from equilibria.experiments.training import load
from equilibria.solve import AlternatingAnderson, Picard
from equilibria.tasks.language import LanguageTask

__all__ = ["EXPERIMENT", "cases", "show"]

CELLS = ("transformer", "trellisnet")
LENGTHS = (100, 200, 400, 800)
DEPTH = 120
ACCELERATED = 40
LAYERS, SOLVER = Picard(), AlternatingAnderson()
SEGMENTS = 4
SHOWN = (12, 30, 60, 120)


def cases(scale: Scale) -> Sequence[Case]:
    """The tied stacks' trainings, and the course of the residual on longer and longer segments."""
    stacks = [trainings.language(cell, scale, deq=False) for cell in CELLS]
    return [
        *stacks,
        *(
            Case(
                key=f"{cell}-{length}",
                description=f"iterates the trained {cell} layer {DEPTH} times, length {length}",
                minutes=0.3 + length / 600,
                run=_course(cell, length),
                settings={
                    "depth": DEPTH,
                    "accelerated": ACCELERATED,
                    "segments": SEGMENTS,
                    "length": length,
                    "solvers": [measure.described(each) for each in (LAYERS, SOLVER)],
                },
                needs=(trainings.tied_key(cell, 0),),
            )
            for cell in CELLS
            for length in LENGTHS
        ),
    ]


def _course(cell: str, length: int) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        stack = load(place, trainings.tied_key(cell, 0))
        task = cast(LanguageTask, stack.data)
        batch = measure.segments(task, length, SEGMENTS)
        model = measure.as_equilibrium(stack)
        return {
            "layers": measure.course(model, batch.inputs, LAYERS, DEPTH),
            "anderson": measure.course(model, batch.inputs, SOLVER, ACCELERATED),
        }

    return run


def show(done: Results) -> Page:
    """The residual against depth, a line for each length."""
    rows: list[list[Any]] = []
    panels: list[Panel] = []
    for cell in CELLS:
        series: list[Series] = []
        for place, length in enumerate(LENGTHS):
            found = done.get(f"{cell}-{length}")
            if found is None:
                rows.append([cell, length, *[None] * (len(SHOWN) + 1)])
                continue
            layers, anderson = found.value["layers"], found.value["anderson"]
            depths = list(range(1, len(layers["median"]) + 1))
            series.append(
                Series(
                    label=f"length {length}",
                    x=depths,
                    y=layers["median"],
                    low=layers["low"],
                    high=layers["high"],
                    colour=place,
                )
            )
            series.append(
                Series(
                    label="",
                    x=depths[: len(anderson["median"])],
                    y=anderson["median"],
                    colour=place,
                    style="dashed",
                )
            )
            rows.append(
                [
                    cell,
                    length,
                    *(layers["median"][depth - 1] for depth in SHOWN),
                    min(filter(None, anderson["median"]), default=None),
                ]
            )
        panels.append(
            Panel(
                title=f"tied {cell}: layers (solid), alternating Anderson (dashed)",
                x="layers, or evaluations",
                y="relative residual",
                series=series,
                log_y=True,
            )
        )
    table = Table(
        title="Relative residual of a trained weight-tied stack, median over segments",
        columns=[
            *("cell", "length"),
            *(f"after {depth} layers" for depth in SHOWN),
            f"alternating Anderson (period 3), best of {ACCELERATED} evaluations",
        ],
        rows=rows,
        note=f"||f(z) - z|| / ||f(z)|| of the layer that was trained {trainings.LAYERS} deep, "
        f"{SEGMENTS} test segments of Penn Treebank, each at a beginning. The paper's figure shows "
        "residuals that fall with depth, slower for longer sequences, and transformers that begin "
        "to oscillate; its values are not printed.",
    )
    return Page([table], panels)


EXPERIMENT = Experiment(
    name="deq/convergence",
    paper=BAI_2019,
    subject="Figure 4",
    description="Trained weight-tied stacks converge with depth, slower on longer sequences.",
    cases=cases,
    show=show,
)
