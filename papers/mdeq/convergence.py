"""Residual of each resolution, and of images from 16 to 128 pixels, by solver."""

from functools import partial

from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.views import Cell, Chart, Lines, Pivot, of
from equilibria.run.studies.views.tables import Column
from equilibria.solve import Anderson, Broyden, Picard
from papers.mdeq.common import NAMES, training_of
from papers.mdeq.residuals import LEVELS, larger, resolutions

EVALS, SAMPLES, BATCHES, BATCH = 60, 32, 5, 4
SOLVERS = {  # that take all evaluations
    "picard": Picard(rtol=0.0, max_evals=EVALS, patience=None),
    "anderson": Anderson(period=3, rtol=0.0, max_evals=EVALS, patience=None),
    "broyden": Broyden(memory=8, rtol=0.0, max_evals=EVALS, patience=None),
}
METHODS = {
    "picard": "plain iteration",
    "anderson": "alternating Anderson (period 3)",
    "broyden": "Broyden, 8 steps",
}
KINDS = {"enlarged": "one image, enlarged", "mosaic": "images side by side"}
SIZES = (16, 32, 64, 128)
SHOWN = (5, 10, 20, 40, 60)


def _spread(evals: int) -> Column:
    """Mean ± deviation over the batches."""

    def cell(rows: Frame) -> Cell:
        mean, high = (of(name, evals=evals)(rows) for name in ("residual", "high"))
        if not isinstance(mean, float) or not isinstance(high, float):
            return mean
        return f"{mean:.1e} ± {high - mean:.0e}"

    return cell


def _count_evals(tolerance: float) -> Column:
    def cell(rows: Frame) -> Cell:
        below = rows["evals"][rows["residual"] <= tolerance]
        return f"over {EVALS}" if below.empty else int(below.min())

    return cell


REACHED = {f"evaluations to {each:g}": _count_evals(each) for each in (1e-1, 1e-2, 1e-3)}
chart = partial(Chart, x="evaluations", y="relative residual", log_y=True, whole_x=True)
lines = partial(Lines, x="evals", y="residual")
banded = partial(lines, low="low", high="high")

STUDY = Study(
    item="Figures 3.3, 3.7",
    title="Convergence of each resolution, and on larger images",
    points=lambda scale: [
        *(
            Point(
                {"images": "test", "network": network},
                [partial(resolutions, solvers=SOLVERS, count=SAMPLES)],
                {network: training_of("cifar10", network, scale)},
                minutes=1,
            )
            for network in ("mdeq", "single")
        ),
        *(
            Point(
                each,
                [partial(larger, solvers=SOLVERS, batches=BATCHES, batch=BATCH)],
                {"mdeq": training_of("cifar10", "mdeq", scale)},
                minutes=round(0.2 + 4 * (each["side"] / 128) ** 2, 1),
            )
            for each in grid(images=KINDS, side=SIZES)
        ),
    ],
    views=[
        Pivot(
            title="Relative residual of each resolution, median over test images",
            index={"network": "network", "solver": "solver", "resolution": "resolution"},
            each="evals",
            where={"images": "test"},
            words={"network": NAMES, "solver": METHODS},
            values={f"after {evals}": of("residual", evals=evals) for evals in SHOWN} | REACHED,
            note=f"CIFAR-10, {SAMPLES} images; ||f(z) - z|| / ||f(z)|| of one resolution alone. "
            "Figure 3.3, whose values are not printed, shows all scales falling together, the "
            "lower ones sooner, and the highest sooner than a single stream.",
        ),
        Pivot(
            title="Relative residual on larger images",
            index={"images": "images", "side": "pixels a side", "solver": "solver"},
            each="evals",
            where={"images": list(KINDS)},
            words={"images": KINDS, "solver": METHODS},
            values={f"after {evals}": _spread(evals) for evals in SHOWN} | REACHED,
            note=f"Mean ± deviation over {BATCHES} batches of {BATCH} test images, solved by one "
            "network, the MDEQ that was trained on the smallest size. Enlarged: CIFAR-10 has 32 x "
            "32 pixels; above that, images are interpolated and hold no finer detail. Side by "
            "side: images of the training's size fill the larger one. Figure 3.7, whose values are "
            "not printed, has CIFAR-10, ImageNet and Cityscapes, with a network trained on each, "
            "and ||z' - z|| / ||z||.",
        ),
        *(
            chart(
                title=f"each resolution, {words}",
                marks=[
                    banded(
                        by=["resolution"],
                        where={"network": "mdeq", "solver": name, "resolution": LEVELS},
                        label="MDEQ, {}".format,
                    ),
                    banded(
                        where={"network": "single", "solver": name, "resolution": "highest"},
                        label="single stream",
                        style="dashed",
                        colors=7,
                    ),
                ],
            )
            for name, words in METHODS.items()
        ),
        *(
            chart(
                title=f"larger images, {words}",
                marks=[
                    banded(
                        by=["side"],
                        where={"images": "enlarged", "solver": name},
                        label="{0:g} x {0:g}".format,
                    ),
                    lines(
                        by=["side"],
                        where={"images": "mosaic", "solver": name},
                        label=lambda side: "side by side" if side == SIZES[0] else "",
                        style="dashed",
                    ),
                ],
            )
            for name, words in METHODS.items()
        ),
    ],
)
