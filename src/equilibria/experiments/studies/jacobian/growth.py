"""Figures 1a, 1b and 10a: residuals and Jacobian grow in training, and not with the penalty."""

from __future__ import annotations

from functools import partial

from equilibria.experiments.data import Frame
from equilibria.experiments.measures.epochs import epochs, summary
from equilibria.experiments.published import BAI_2021
from equilibria.experiments.studies.jacobian import _images as images
from equilibria.experiments.study import Point, Study
from equilibria.experiments.views import DIVERGED, Cell, Chart, Lines, Pivot, first, last

__all__ = ["STUDY"]

NAMES = ("plain", "decay", images.BEST)
FORWARD, ADJOINT = images.PROBED.forward, images.PROBED.adjoint
FIGURES = {
    "probe_forward": ("Fig. 1a", f"forward residual after {FORWARD}"),
    "probe_adjoint": ("Fig. 10a", f"adjoint residual after {ADJOINT}"),
    "probe_norm": ("Fig. 1b", "||J||² / d"),
    "radius": ("Fig. 7", "spectral radius"),
}
lines = partial(Lines, by=("network",), label=images.WORDS)


def _accuracy(rows: Frame) -> Cell:
    """Of the last epoch, on the images that are set aside; on the test images without any."""
    if first("diverged")(rows) is None:
        return last("valid_accuracy", 100)(rows) or last("test_accuracy", 100)(rows)
    return DIVERGED if first("epoch")(rows) else "diverged in the first epoch"


STUDY = Study(
    paper=BAI_2021,
    item="Figures 1a, 1b, 7, 10a",
    title="Residuals and Jacobian in training",
    description="Residuals and the Jacobian's norm over the training of an MDEQ, by the penalty.",
    points=lambda scale: [
        Point(
            factors={"network": name, "seed": seed},
            measures=[summary, epochs],
            runs={name: images.training_of(name, scale, seed)},
        )
        for seed in images.SEEDS["plain"]
        for name in NAMES
        if seed in images.SEEDS[name]
    ],
    views=[
        Pivot(
            title="Residuals and Jacobian over the training of an MDEQ on images",
            index={"network": "network", "seed": "seed"},
            whole=True,
            values={
                "held-out accuracy, %": _accuracy,
                "evaluations in training, last epoch": last("forward"),
                **{
                    f"{words}, {when} epoch": of(column)
                    for column, (_, words) in FIGURES.items()
                    for when, of in (("first", first), ("last", last))
                },
            },
            words={"network": images.WORDS},
            note="Residuals: relative, of held-out images, without dropout, after a fixed number "
            f"of evaluations or products whatever the limits of training ({images.LIMIT} of either "
            f"without the penalty, {images.THIRD} with it). Weight decay: {images.DECAY:g}, of the "
            "others the recipe's. The paper's figure shows the unregularised residuals growing "
            "over the training, an adjoint residual above 0.05 with weight decay, and neither with "
            "the penalty; its values are not printed.",
        ),
        *(
            Chart(
                title=f"{figure}: {words}",
                x="epoch",
                y="",
                marks=[lines(x="epoch", y=column, band=True, style="marked")],
                log_y=True,
                whole_x=True,
            )
            for column, (figure, words) in FIGURES.items()
        ),
        Chart(
            title="Fig. 1b: forward residual against ||J||² / d",
            x="||J||² / d",
            y=f"residual after {FORWARD}",
            marks=[lines(x="probe_norm", y="probe_forward", merge=None, style="points")],
            log_x=True,
            log_y=True,
        ),
        Chart(
            title="evaluations in training, mean",
            x="epoch",
            y="",
            marks=[lines(x="epoch", y="forward", band=True, style="marked")],
            whole_x=True,
            zero=True,
        ),
    ],
)
