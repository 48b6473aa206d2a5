"""Time and memory of a training step on all pixels of an image.

camera at 128 x 128 pixels, recipe image, after a first step that solves in full. Medians over
steps, interleaved between all networks in one process. Memory: the peak of two consecutive steps,
including gradients and the states kept from one to the other.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.run import evaluation, memory
from equilibria.run.studies.measures import timing
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Context, Point, Scale, Study
from equilibria.run.studies.views import NOT_RUN, Table
from equilibria.run.trainer import Trainer
from papers.representation.common import FILTERS, recipe

NETWORKS = ("implicit 1L-{0}D", "implicit 1L-{1}D", "explicit 4L-{1}D", "explicit 4L-{2}D")
WIDTHS = {"cpu": (256, 128, 64), "gpu": (512, 256, 128)}
MIB = 2**20


def cost(context: Context) -> Iterable[dict[str, Any]]:
    """For each network `step_ms`, the time of a training step, all interleaved; `bytes`, the peak
    memory of two steps, including gradients and kept states; and the part of it that the `cache` of
    states takes.
    """
    trainers = {
        _name(each): Trainer(each, context.tasks(each), evaluation.accelerator(each.precision))
        for each in context.reads
    }
    times = timing.steps(trainers)
    for name, trainer in trainers.items():
        yield {
            "timed": name,
            "step_ms": times[name]["step"],
            "bytes": bytes_of_steps(trainer),
            "cache": 0 if trainer.reuse is None else trainer.reuse.cache.bytes,
        }


def bytes_of_steps(trainer: Trainer) -> int:
    """Return the peak memory of two steps of a trainer that has already taken some."""

    def twice() -> None:
        trainer.train_step()  # its states, from which the second step starts, are counted
        trainer.train_step()

    # Held, since on a GPU the previous states, freed by the first step, would be subtracted.
    before = None if trainer.reuse is None else trainer.reuse.cache.read()
    peak = memory.peak_bytes(twice, trainer.accelerator.device)
    del before
    return peak


def _name(each: Any) -> str:
    kind = "implicit" if each.model.implicit else "explicit"
    return f"{kind} {each.model.layers}L-{each.model.width}D"


def point(filters: str, scale: Scale) -> Point:
    """Return the point that compares the networks for one kind of filters."""
    names = [each.format(*WIDTHS[scale]) for each in NETWORKS]
    base = "image-gpu" if scale == "gpu" else "image"
    return Point(
        {"filters": filters},
        [cost],
        reads=[recipe(base, filters, name) for name in names],
        settings={"networks": names},
        minutes=1,
    )


def _rows(data: Data) -> Iterable[Sequence[Any]]:
    found = data.series("step_ms")
    for filters in FILTERS:
        rows = found if found.empty else found[found["filters"] == filters]
        if rows.empty:
            yield [filters, NOT_RUN]
            continue
        rows = rows.set_index("timed")
        base = rows.iloc[2]  # the explicit network with the width of the smaller implicit one
        for name, row in rows.iterrows():
            yield [
                *(filters, name, row["step_ms"], row["step_ms"] / base["step_ms"]),
                *(row["bytes"] / MIB, row["bytes"] / base["bytes"], row["cache"] / MIB),
            ]


STUDY = Study(
    item="Figure 8.5",
    title="Cost of a representation",
    points=lambda scale: [point(filters, scale) for filters in FILTERS],
    views=[
        Table(
            title="Training step",
            columns=[
                *("filters", "network", "step, ms", "relative to explicit 4L of equal width"),
                *("memory, MiB", "relative to explicit 4L of equal width", "kept states, MiB"),
            ],
            rows=_rows,
        )
    ],
)
