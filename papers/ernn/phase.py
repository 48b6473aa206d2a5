"""States of two entries of untrained cells under a one-dimensional random walk."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from equilibria.nn.recurrent.cell import CellOptions
from equilibria.run.studies.study import Context, Point, Scale, Study
from equilibria.run.studies.views import Chart, Lines, Pivot
from equilibria.zoo.recurrent import model as recurrent

STEPS, VARIANCE, SEED = 1000, 10.0, 0
CELLS: dict[str, CellOptions] = {
    "RNN": recurrent.RNNOptions(),
    "FastRNN": recurrent.FastRNNOptions(activation="tanh"),
    "ERNN, K = 5": recurrent.ERNNOptions(steps=5, start="zero", step_size=0.5, activation="tanh"),
    "ImplicitERNN": recurrent.ImplicitERNNOptions(activation="tanh"),
}


def path(context: Context, *, cell: str) -> Iterable[dict[str, Any]]:
    """h_k, and h_k + h_(k-1), which lies on the equilibrium manifold of an equilibrated cell."""
    torch.manual_seed(SEED)
    layer = recurrent.Recurrent(1, 2, cell=CELLS[cell]).double()
    x = (VARIANCE**0.5 * torch.randn(STEPS, 1, 1)).cumsum(0).double() / STEPS**0.5
    with torch.no_grad():
        begin = torch.ones(1, 1, 2).double()
        h = layer(x, begin)[0][:, 0]
        before = torch.cat([begin[0], h[:-1]])
    for k, (one, other) in enumerate(zip(h, h + before, strict=True), 1):
        yield {"step": k, "h1": float(one[0]), "h2": float(one[1]),
               "s1": float(other[0]), "s2": float(other[1])}  # fmt: skip


def points(scale: Scale) -> list[Point]:
    return [Point({"cell": cell}, [partial(path, cell=cell)]) for cell in CELLS]


STUDY = Study(
    item="Figure 1",
    title="Trajectories in phase space",
    note=f"{STEPS} steps, a walk of variance {VARIANCE:g} at its end, one draw of the weights, "
    "h_0 = (1, 1). For equilibrated cells h_k + h_(k-1) is drawn too, which at equilibrium is a "
    "function of the input alone and so lies on a curve.",
    points=points,
    views=[
        Pivot(
            title="Range of the states",
            index={"cell": "cell"},
            whole=True,
            values={
                f"{name}": (lambda rows, c=c: f"{rows[c].min():.3g} to {rows[c].max():.3g}")
                for name, c in (("h, 1st entry", "h1"), ("h, 2nd entry", "h2"),
                                ("h_k + h_(k-1), 1st", "s1"), ("h_k + h_(k-1), 2nd", "s2"))
            },
        ),
        *(
            Chart(
                title=cell,
                x="1st entry",
                y="2nd entry",
                marks=[
                    Lines("h1", "h2", where={"cell": cell}, merge=None, label="h_k"),
                    *(
                        [Lines("s1", "s2", where={"cell": cell}, merge=None, colors=1,
                               style="points", label="h_k + h_(k-1)")]
                        if "ERNN" in cell
                        else []
                    ),
                ],
            )
            for cell in CELLS
        ),
    ],
)  # fmt: skip
