"""Figure 6 and Section 3.4 of Bai et al. 2021: error, memory and run time on images."""

from __future__ import annotations

from typing import Any

from equilibria.experiments.published import BAI_2021, published
from equilibria.experiments.studies.jacobian._costs import READERS, SOLVERS
from equilibria.experiments.studies.jacobian._images import LIMIT, THIRD
from equilibria.experiments.views import Bars, Chart, Pivot, mean, of

__all__ = ["VIEWS", "WORDS"]

MIB = 2**20
WORDS = {
    "resnet": "ResNet",
    "plain": f"MDEQ, {LIMIT} evaluations",
    "stopped": f"MDEQ, stopped at {THIRD}",
    "regularised": f"MDEQ, regularised, {THIRD}",
}
SHORT = {"resnet": "ResNet", "plain": "MDEQ", "stopped": "stopped", "regularised": "regularised"}


def _bars(title: str, y: str, column: str, *, scale: float = 1, **options: Any) -> Chart:
    """A bar for each reader that has the figure; costs are those of seed 0."""
    readers = options.pop("readers", tuple(READERS))
    bars = Bars(at="reader", places=readers, y=column, scale=scale, **options)
    return Chart(title=title, x="", y=y, marks=[bars], names=[SHORT[r] for r in readers], zero=True)


VIEWS = [
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
            for row in published(BAI_2021, "Figure 6")
        ],
        note="Run times relative to the explicit network (the paper's: ResNet-101). Ours: "
        "medians of the trained networks of seed 0, interleaved in one process; a training "
        "step is weighted by the share of steps that have the penalty. Memory: in float32, "
        "peak of forward and backward less parameters and gradients; with the penalty, that of "
        "a step which has it. Errors: means over the seeds that have not diverged.",
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
    _bars("Fig. 6: test error", "%", "error", scale=100),
    _bars("Fig. 6: memory of a training step", "MiB", "step_bytes", scale=1 / MIB,
          readers=("resnet", "plain", "regularised")),
    _bars("Fig. 6: run time of inference", "ResNet = 1", "relative", where={"seed": 0}),
    _bars("Section 3.4: the solver's share of inference memory", "%", "share", scale=100,
          by="solver", label=SOLVERS, readers=("plain", "stopped", "regularised")),
]  # fmt: skip
