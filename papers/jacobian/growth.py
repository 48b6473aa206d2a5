"""Residuals and the Jacobian's norm over the training of an MDEQ, by the penalty."""

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Pivot, first, last
from papers.jacobian import images
from papers.jacobian.common import against_norm, course, final

LINES = {"label": images.WORDS, "band": True}
FORWARD, ADJOINT = images.PROBED.forward, images.PROBED.adjoint
FIGURES = {
    "probe_forward": ("Fig. 1a", f"forward residual after {FORWARD}"),
    "probe_adjoint": ("Fig. 10a", f"adjoint residual after {ADJOINT}"),
    "probe_norm": ("Fig. 1b", "||J||² / d"),
    "radius": ("Fig. 7", "spectral radius"),
}

STUDY = Study(
    item="Figures 1a, 1b, 7, 10a",
    title="Residuals and Jacobian in training",
    points=lambda scale: [
        Point(
            {"network": name, "seed": seed},
            [summary, epochs],
            {name: images.training_of(name, scale, seed)},
        )
        for seed in images.SEEDS["plain"]
        for name in ("plain", "decay", images.BEST)
        if seed in images.SEEDS[name]
    ],
    views=[
        Pivot(
            title="Residuals and Jacobian over the training of an MDEQ on images",
            index={"network": "network", "seed": "seed"},
            whole=True,
            values={
                "held-out accuracy, %": final("valid_accuracy", "test_accuracy", scale=100),
                "evaluations in training, last epoch": last("forward"),
                **{
                    f"{words}, {when} epoch": of(column)
                    for column, (_, words) in FIGURES.items()
                    for when, of in (("first", first), ("last", last))
                },
            },
            words={"network": images.WORDS},
            note="Residuals: relative, of held-out images, without dropout, whatever the limits of "
            f"training ({images.LIMIT} without the penalty, {images.THIRD} with it). Weight decay: "
            f"{images.DECAY:g}, of the others the recipe's. In the paper's figure, whose values "
            "are not printed, unregularised residuals grow, the adjoint one is above 0.05 with "
            "weight decay, and neither with the penalty.",
        ),
        *(
            course(f"{figure}: {words}", "epoch", column, **LINES)
            for column, (figure, words) in FIGURES.items()
        ),
        against_norm("Fig. 1b", f"residual after {FORWARD}", label=images.WORDS),
        course("evaluations in training, mean", "epoch", "forward", zero=True, **LINES),
    ],
)
