"""PSNR of implicit and explicit networks on a second and a half of Bach.

Recipe sound: 16,537 samples at 11,025 Hz, 1,000 steps on all of them, scale 3,600 per second
(sines: half), as the released 25,000 for seven seconds. Weights are unbounded, so an equilibrium
need not exist; the fraction of samples that converge is given.
"""

from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Pivot, Table
from papers.representation import common
from papers.representation.common import FILTERS

NETWORKS = {
    "cpu": ("implicit 1L-256D", "explicit 4L-128D", "explicit 1L-256D"),
    "gpu": ("implicit 1L-512D", "explicit 4L-256D", "explicit 1L-512D"),
}


def points(scale: Scale) -> list[Point]:
    kinds = [
        (filters, seed, network)
        for seed in (0, 1, 2)
        for filters in FILTERS
        for network in NETWORKS[scale]
    ]
    return common.points("sound", kinds, scale, 3)


STUDY = Study(
    item="Section 8.3.3",
    title="A sound as a function",
    points=points,
    views=[
        Pivot(
            title="Bach, 1.5 s",
            index={"filters": "filters", "network": "network"},
            values=common.columns("psnr", {**common.PSNR, **common.SOLVES}),
        ),
        Table(
            title="Section 8.3.3, published",
            columns=["network", "PSNR, dB"],
            rows=lambda data: common.from_paper("Section 8.3.3"),
            note="Seven seconds at 44.1 kHz.",
        ),
    ],
)
