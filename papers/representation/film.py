"""PSNR of implicit and explicit networks on 30 frames of a street.

Recipe film: 30 frames of CamVid, 60 x 80 pixels in colour, 2,000 steps of 8,192 pixels. Weights are
unbounded, so an equilibrium need not exist; the fraction of pixels that converge is given. The PSNR
is the mean over frames.
"""

from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Pivot, Table
from papers.representation import common
from papers.representation.common import FILTERS

NETWORKS = {
    "cpu": ("implicit 1L-256D", "explicit 4L-128D", "explicit 1L-256D"),
    "gpu": ("implicit 1L-2048D", "explicit 4L-1024D", "explicit 1L-2048D"),
}
LARGE = ("--task.data", "street", "--task.size", "480", "--task.frames", "100")
"""Needed because the GPU recipe expects the user's own film."""


def points(scale: Scale) -> list[Point]:
    kinds = [(filters, 0, network) for network in NETWORKS[scale] for filters in FILTERS]
    return common.points("film", kinds, scale, 4, LARGE if scale == "gpu" else ())


STUDY = Study(
    item="Table 8.2",
    title="A film as a function",
    points=points,
    views=[
        Pivot(
            title="Table 8.2: a street",
            index={"filters": "filters", "network": "network"},
            values=common.columns("psnr", {**common.PSNR, **common.SOLVES}),
        ),
        Table(
            title="Table 8.2, published",
            columns=["network", "1L-1024D, dB", "1L-2048D", "4L-1024D"],
            rows=lambda data: common.from_paper("Table 8.2"),
            note="Mean PSNR of 300 frames of 512 x 512 pixels.",
        ),
    ],
)
