"""The norm of dh_T/dh_k of untrained cells, up to a thousand steps apart."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from equilibria.nn.recurrent.cell import CellOptions
from equilibria.run.studies.study import Context, Point, Scale, Study
from equilibria.run.studies.views import Lines, Pivot
from equilibria.zoo.recurrent.model import ERNNOptions
from equilibria.zoo.recurrent.model.diagnostics import gradient_norms
from papers.ernn.common import LAYERS

STEPS, WIDTH, CHANNELS, SEEDS = 1000, 32, 9, 3
APART = (1, 10, 30, 100, 300, 600, 1000)
ERNN = partial(ERNNOptions, bound=0.9)
EQUILIBRATED: dict[str, CellOptions] = {
    "ERNN, K = 1, start previous, eta 0.01": ERNN(),
    "ERNN, K = 5, start previous, eta 0.01": ERNN(steps=5),
    "ERNN, K = 5, start zero, eta 0.01": ERNN(steps=5, start="zero"),
    "ERNN, K = 5, start zero, eta 0.5": ERNN(steps=5, start="zero", step_size=0.5),
    "ERNN, K = 20, start zero, eta 0.5": ERNN(steps=20, start="zero", step_size=0.5),
    "ERNN, K = 50, start zero, eta 0.5": ERNN(steps=50, start="zero", step_size=0.5),
}
CELLS = {**EQUILIBRATED, **{name: LAYERS[name][0] for name in ("ImplicitERNN", "RNN", "LSTM")}}


def norms(context: Context, *, cell: str) -> Iterable[dict[str, Any]]:
    """|dh_T/dh_k| in the spectral norm by T - k, for each seed of the weights and the inputs."""
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        found = gradient_norms(CELLS[cell].build(CHANNELS, WIDTH), torch.randn(STEPS, CHANNELS))
        found = found.flip(0)
        for apart in APART:
            yield {"seed": seed, "apart": apart, "norm": max(float(found[apart - 1]), 1e-300)}


def points(scale: Scale) -> list[Point]:
    return [Point({"cell": cell}, [partial(norms, cell=cell)], minutes=0.3) for cell in CELLS]


STUDY = Study(
    item="Figure 2",
    title="Gradients through time",
    note=f"Spectral norm, {WIDTH} units, {CHANNELS} channels of Gaussian noise, {SEEDS} seeds, "
    "median; norms below 1e-300 are shown as that. ERNN and ImplicitERNN with singular values of U "
    "up to 0.9, as Lemma 2 asks. The paper trains on HAR-2 and shows the norm of one gradient.",
    points=points,
    views=[
        Pivot(
            title="|dh_T/dh_k| by T - k",
            index={"cell": "cell"},
            each="apart",
            across="apart",
            values={"{level}": lambda rows: f"{rows['norm'].median():.2g}"},
        ),
        Lines("apart", "norm", by=["cell"], merge="median", style="marked").chart(
            "|dh_T/dh_k|", "T - k", "norm", log_x=True, log_y=True, span_y=(1e-12, 1e6)
        ),
    ],
)
