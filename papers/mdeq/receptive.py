"""What an output depends on after r evaluations: exact limits, and strength."""

from dataclasses import replace
from functools import partial

from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Chart, Lines, Pivot, of
from equilibria.zoo.vision.model.mdeq import MDEQConfig
from papers.mdeq.common import training_of
from papers.mdeq.reach import bounds, reach, strength

EVALS = {1: 8, 2: 8, 3: 5, 4: 3}
"""Evaluations that are measured, by the number of resolutions."""
DRAWS = 2
STRENGTH = (1, 2, 4, 8, 16)
"""Evaluations after which the strength of a dependence is shown."""
ACROSS = 4
"""Images along a side of the mosaic that the trained network is given."""
NORMS = {"group": "with GroupNorm, trained", "none": "without, new weights"}


def cell(resolutions: int, evals: int) -> MDEQConfig:
    """Return a network whose cell has no norm, for images that its reach does not leave."""
    config = MDEQConfig(
        classes=2,
        channels=(8,) * resolutions,
        head_channels=(1,) * resolutions,
        final=1,
        expansion=1,
        norm="none",
        weight_norm=False,
        initial=None,
    )
    coarsest = 2 ** (resolutions - 1)
    most = int(bounds(config, evals)[-1].max())
    side = -(-(most + 2) // coarsest) * 2 * coarsest  # a middle that all resolutions have
    return replace(config, shape=(1, side, side))


lines = partial(Lines, x="evals", by=["resolutions"], where={"what": "reach"})
strengths = partial(Lines, x="distance", y="gradient", by=["evals"])

STUDY = Study(
    item="Sections 3.3.5, 4.2.6",
    title="What an output depends on",
    points=lambda scale: [
        *(
            Point(
                {"what": "reach", "resolutions": n},
                [partial(reach, config=cell(n, evals), evals=evals, draws=DRAWS)],
                minutes={1: 0.2, 2: 0.4, 3: 1, 4: 2}[n],
            )
            for n, evals in EVALS.items()
        ),
        Point(
            {"what": "strength"},
            [partial(strength, evals=STRENGTH, across=ACROSS)],
            {"mdeq": training_of("cifar10", "mdeq", scale)},
            minutes=0.5,
        ),
    ],
    views=[
        Pivot(
            title="How far an output sees after r plain evaluations, in pixels",
            index={"resolutions": "resolutions", "evals": "r"},
            each="evals",
            where={"what": "reach"},
            values={
                "measured": "measured",
                "counted": "counted",
                "r 2^n": "bound",
                "one evaluation sees of z": "field",
                "resolutions where both agree": "agreeing",
                "nothing beyond": "within",
            },
            note="Measured: the farthest pixel, along an axis, whose gradient is not exactly zero, "
            f"over all resolutions of z_r and {DRAWS} draws of weights, in double precision. "
            "Counted: from kernels and strides alone. The cell has no norm here: the statistics of "
            "GroupNorm make every output depend on every pixel from the first evaluation on, "
            "though weakly (below). r 2^n includes the stem. One evaluation sees more of z, which "
            "stands at all resolutions, than of the image, which enters at the highest.",
        ),
        Pivot(
            title="Largest |gradient| at a distance, relative to its maximum",
            index={"norm": "cell", "evals": "evaluations"},
            each="distance",
            where={"what": "strength"},
            words={"norm": NORMS},
            values={f"{at} pixels": of("gradient", distance=at) for at in (4, 8, 16, 24)},
            note=f"Of the middle place of the highest resolution, CIFAR-10, {ACROSS} x {ACROSS} "
            "test images side by side.",
        ),
        Chart(
            title="reach, measured; dashed: r 2^n at n resolutions",
            x="evaluations r",
            y="pixels",
            marks=[
                lines(y="measured", style="marked", label="resolutions: {:g}".format),
                lines(y="bound", style="dashed", label=""),
            ],
            whole_x=True,
            zero=True,
        ),
        *(
            strengths(where={"norm": norm}, label="evaluations: {:g}".format).chart(
                title, "distance, pixels", "|gradient|, the largest being 1", log_y=True
            )
            for norm, title in (
                ("group", "trained MDEQ, with its GroupNorm"),
                ("none", "the same cell without GroupNorm, new weights"),
            )
        ),
    ],
)
