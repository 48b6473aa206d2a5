"""Evaluations to the equilibrium from the states kept during training.

camera at 64 x 64 pixels, recipe image: one evaluation in each step. After every ten steps, with the
weights of the next one, evaluations of f by fixed-point iteration are counted until ||f(z) - z|| <=
.01 ||f(z)||, with one norm over all pixels as in the thesis, or one per pixel.
"""

from equilibria.run.studies.measures.epochs import summary
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Lines, Pivot, largest, median
from papers.representation.common import FILTERS, Warmth, recipe, warmth

EARLY = 100
"""Number of first steps that the medians leave out."""

STARTS = {
    "kept": "the previous step",
    "zero": "zero",
    "kept_point": "the previous step, per pixel",
    "zero_point": "zero, per pixel",
}


def point(filters: str, scale: Scale) -> Point:
    """Return the point of a training that is probed every ten steps."""
    size, network = {"cpu": (64, "implicit 1L-256D"), "gpu": (512, "implicit 1L-512D")}[scale]
    frequencies = str(size / (2 if filters == "sines" else 1))
    words = f"--task.size {size} --model.scale {frequencies} --epochs 100 --epoch_steps 10".split()
    name = "image-gpu" if scale == "gpu" else "image"
    found = Training(recipe(name, filters, network, *words), 3, probe=Warmth())
    return Point({"filters": filters, "network": network}, [summary, warmth], {"run": found})


STUDY = Study(
    item="Figure 8.3",
    title="Reuse of states",
    points=lambda scale: [point(filters, scale) for filters in FILTERS],
    views=[
        Pivot(
            title=f"Evaluations to a residual of .01, after step {EARLY}",
            index={"filters": "filters", "network": "network"},
            whole=True,
            values={
                f"from {words}: median": lambda rows, name=name: median(name)(
                    rows[rows["step"] > EARLY]
                )
                for name, words in STARTS.items()
            }
            | {"maximum, from the previous step": largest("kept"), "PSNR, dB": "psnr"},
            note="Per pixel: the median over pixels, then over steps.",
        ),
        Lines("step", tuple(STARTS)[:2], where={"filters": "Fourier"}, label=STARTS).chart(
            "Evaluations to .01, Fourier filters", "step", "evaluations", zero=True, whole_x=True
        ),
    ],
)
