"""PSNR with T terms of the Neumann series, and with the exact gradient.

camera at 64 x 64 pixels, recipe image, Fourier filters, reuse of states. The gradient is that of
eq. 8.10; exact: the linear system is solved to a tolerance of .01 in each step.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.views import Lines, Table
from papers.representation.common import training

SEEDS = (0, 1, 2)
EXACT = "exact"
ADJOINTS = {
    "T = 0": "JacobianFree",
    "T = 1": "NeumannPhantom --adjoint.steps 2 --adjoint.damping 1.0",
    "T = 2": "NeumannPhantom --adjoint.steps 3 --adjoint.damping 1.0",
    EXACT: "Implicit --adjoint.linear.rtol 1e-2",
}


def point(gradient: str, seed: int, scale: Scale) -> Point:
    """Return the point of a training with a given gradient."""
    size, network = {"cpu": (64, "implicit 1L-128D"), "gpu": (512, "implicit 1L-512D")}[scale]
    words = f"--task.size {size} --model.scale {size} --seed {seed}".split()
    words += f"--adjoint.name {ADJOINTS[gradient]}".split()
    minutes = 2.0 if gradient == EXACT else 0.3
    return Point(
        {"gradient": gradient, "network": network, "seed": seed},
        [summary, epochs],
        {"run": training("image", "Fourier", network, minutes, words, scale)},
    )


def _rows(data: Data) -> Iterable[Sequence[Any]]:
    found = data.points[data.points["done"]]
    if found.empty:
        return
    psnr = found.pivot(index="seed", columns="gradient", values="psnr")
    for name in ADJOINTS:
        if name not in psnr:
            continue
        closed = None
        if {"T = 0", EXACT} <= set(psnr):
            whole = psnr.dropna()
            gaps = whole[EXACT] - whole["T = 0"]
            closed = 100 * (whole[name] - whole["T = 0"]).sum() / gaps.sum()
        rows = found[found["gradient"] == name]
        figures = psnr[name].dropna()
        yield [
            *(name, len(figures), figures.mean(), figures.std() if len(figures) > 1 else None),
            *(closed, rows["seconds"].mean() / 60),
        ]


STUDY = Study(
    item="Figure 8.4",
    title="Truncated gradients of a representation",
    points=lambda scale: [
        point(scale=scale, **each) for each in grid(seed=SEEDS, gradient=ADJOINTS)
    ],
    views=[
        Table(
            title="Gradients",
            columns=[
                *(
                    "gradient",
                    "seeds",
                    "PSNR, dB",
                    "standard deviation, dB",
                    "of the gap closed, %",
                ),
                "training, min",
            ],
            rows=_rows,
            note="The gap is that between T = 0 and the exact gradient, over seeds that have both.",
        ),
        Lines("step", "test_psnr", by=["gradient"], band=True).chart(
            "PSNR", "step", "dB", whole_x=True
        ),
    ],
)
