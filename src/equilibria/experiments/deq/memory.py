"""Memory of a step against length and depth: equilibrium, unrolled, checkpointed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from equilibria.bench.record import Table
from equilibria.experiments import measure, trainings
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page, Scale
from equilibria.experiments.published import BAI_2019, PTB, WIKITEXT
from equilibria.tasks.language import LanguageTask
from equilibria.train import memory
from equilibria.train import recipe as recipes
from equilibria.train.step import seed_all

__all__ = ["EXPERIMENT", "cases", "show"]

LENGTHS = (50, 100, 200, 400)
DEPTHS = (6, 12, 24, 48)
BATCH = 4
KINDS = ("deq", "unrolled", "checkpointed")
MIB = 2**20


def cases(scale: Scale) -> Sequence[Case]:
    """One step of each kind at each depth; a case is a cell and a length."""
    return [
        Case(
            key=f"{cell}-{length}",
            description=f"measures steps of the {cell} cell on segments of {length} tokens",
            minutes=0.3 + length / 400,
            run=_measured(trainings.CELLS[cell], length, scale),
            settings={
                "recipe": recipes.dump(trainings.named(trainings.CELLS[cell], scale)),
                "length": length,
                "depths": DEPTHS,
                "batch": BATCH,
            },
        )
        for cell in trainings.CELLS
        for length in LENGTHS
    ]


def _measured(name: str, length: int, scale: Scale) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        recipe = trainings.named(name, scale)
        task = cast(LanguageTask, recipe.task.load(place.data_dir))
        batch = measure.segments(task, length, BATCH, "train")
        seed_all(0)
        model = task.model(recipe.model, **recipe.layer())
        return {"points": [asdict(p) for p in memory.measure(model, task, batch, DEPTHS)]}

    return run


def show(done: Results) -> Page:
    """Bytes against depth at the longest segments, and against length at the middle depth."""
    tables = [_table(cell, done) for cell in trainings.CELLS]
    panels: list[Panel] = []
    for cell in trainings.CELLS:
        depth, length = DEPTHS[1], LENGTHS[-1]
        panels += [
            Panel(
                title=f"{cell}: against depth, length {length}",
                x="evaluations, or layers",
                y="MiB of a training step",
                series=[
                    Series(
                        label=kind,
                        x=DEPTHS,
                        y=[_bytes(done, cell, length, kind, each) for each in DEPTHS],
                        style="marked",
                    )
                    for kind in KINDS
                ],
                log_y=True,
                whole_x=True,
            ),
            Panel(
                title=f"{cell}: against length, depth {depth}",
                x="tokens of a segment",
                y="MiB of a training step",
                series=[
                    Series(
                        label=kind,
                        x=LENGTHS,
                        y=[_bytes(done, cell, each, kind, depth) for each in LENGTHS],
                        style="marked",
                    )
                    for kind in KINDS
                ],
                log_x=True,
                log_y=True,
            ),
        ]
    return Page([*tables, published()], panels)


def _table(cell: str, done: Results) -> Table:
    rows: list[list[Any]] = []
    for length in LENGTHS:
        for depth in DEPTHS:
            figures = [_bytes(done, cell, length, kind, depth) for kind in KINDS]
            deq, unrolled, _ = figures
            share = None if deq is None or unrolled is None else 100 * deq / unrolled
            history = _bytes(done, cell, length, "deq", depth, "history_bytes")
            rows.append([length, depth, *figures, history, share])
    return Table(
        title=f"Memory of a training step, {cell}",
        columns=[
            *("length", "depth", *(f"{kind}, MiB" for kind in KINDS)),
            "of which the solver's history",
            "equilibrium / unrolled, %",
        ],
        rows=rows,
        note=f"Peak bytes of forward and backward less parameters and gradients, {BATCH} segments, "
        "without embedding and softmax; each solve takes exactly as many evaluations as there are "
        "layers. The history grows with the evaluations up to what the solver keeps.",
    )


def _bytes(
    done: Results, cell: str, length: int, kind: str, depth: int, figure: str = "bytes"
) -> float | None:
    found = done.get(f"{cell}-{length}")
    for point in found.value["points"] if found is not None else ():
        if point["kind"] == kind and point["evals"] == depth:
            return point[figure] / MIB
    return None


def published() -> Table:
    """What the paper prints of memory, all rows of its Tables 2 and 3 that have it."""
    rows = [
        [where, row.model, row.memory]
        for where, rows in (("Penn Treebank", PTB), ("WikiText-103", WIKITEXT))
        for row in rows
        if row.memory is not None
    ]
    return Table(
        title="Published: memory of a training step, GB",
        columns=["text", "model", "GB"],
        rows=rows,
        note="Length 150, batch 15, on a GPU, without embeddings: 80 to 88 % less than the "
        "weight-tied stacks.",
    )


EXPERIMENT = Experiment(
    name="deq/memory",
    paper=BAI_2019,
    subject="Section 5.2, last columns of Tables 2 and 3",
    description="Memory of a step against length and depth: equilibrium, unrolled, checkpointed.",
    cases=cases,
    show=show,
)
