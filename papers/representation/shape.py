"""IoU of implicit and explicit networks on the inside of a knot.

Recipe shape: 1,000 steps of 4,096 new points, half of them near the surface, with noise .02;
evaluated at 20,000 such points and at 20,000 in the cube. Fourier filters; implicit networks have
bound .97, and solve in each step. The thesis gives its figures in a plot only.
"""

from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Pivot, mean, spread
from papers.representation import common

NETWORKS = {
    "cpu": ("implicit 1L-128D", "explicit 4L-64D", "explicit 1L-128D"),
    "gpu": ("implicit 1L-512D", "explicit 4L-256D", "explicit 1L-512D"),
}


def points(scale: Scale) -> list[Point]:
    kinds = [("Fourier", seed, network) for seed in (0, 1, 2) for network in NETWORKS[scale]]
    return common.points("shape", kinds, scale, 2)


STUDY = Study(
    item="Figure 8.9",
    title="A shape as a function",
    points=points,
    views=[
        Pivot(
            title="Figure 8.9: a knot",
            index={"filters": "filters", "network": "network"},
            values=common.columns(
                "iou",
                {
                    "IoU near the surface, %": spread("iou", 100, ".2f"),
                    "IoU in the cube, %": spread("iou_cube", 100, ".2f"),
                    "evaluations": mean("evals"),
                },
            ),
        )
    ],
)
