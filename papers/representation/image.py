"""PSNR of implicit and explicit networks on scikit-image's camera.

Recipe image: 1,000 steps on all pixels, reuse of states, one Neumann term, cosine decay from 3e-3.
Scale n: frequencies are initialised as U(-n, n) / sqrt(2 (L + 1)) at n x n pixels, and half of that
for sines; the released code takes half of both. The PSNR is of values clipped to the range of the
image, after solves from zero to a tolerance of 1e-3.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Lines, Pivot
from papers.representation.common import FILTERS, PSNR, columns, training

SEEDS = (0, 1, 2)
NETWORKS = ("implicit 1L-{0}D", "explicit 4L-{1}D", "implicit 1L-{1}D", "explicit 4L-{2}D")
WIDTHS = {"cpu": (256, 128, 64), "gpu": (512, 256, 128)}
WHOLE, RELEASED = "n", "released: n/2"


def points(scale: Scale) -> list[Point]:
    names = [each.format(*WIDTHS[scale]) for each in NETWORKS]
    images: Any = {64: (FILTERS, SEEDS), 128: (("Fourier",), (0,))}
    if scale == "gpu":
        images = {512: (FILTERS, (0,))}
    kinds = [
        {"pixels": pixels, "scale": WHOLE, "filters": f, "network": n, "bound": bound, "seed": seed}
        for pixels, (filters, seeds) in images.items()
        for seed, f, n in product(seeds, filters, names)
        for bound in ((".97",) if n.startswith("implicit") else ("none", ".97"))
    ]
    halved = {"scale": RELEASED, "seed": 0}
    kinds += [
        each | halved
        for each in kinds
        if {("pixels", 64), ("filters", "Fourier"), ("seed", 0)} <= set(each.items())
    ]
    return [point(each, scale) for each in kinds]


def point(factors: Mapping[str, Any], scale: Scale) -> Point:
    """Return the point of one training."""
    pixels, filters, bound = (factors[name] for name in ("pixels", "filters", "bound"))
    frequencies = pixels / (2 if filters == "sines" else 1)
    frequencies /= 2 if factors["scale"] == RELEASED else 1
    words = ["--task.size", str(pixels), "--model.scale", str(frequencies)]
    words += ["--model.bound", "null" if bound == "none" else bound]
    words += ["--seed", str(factors["seed"])]
    minutes = 0.5 * (pixels / 64) ** 2
    return Point(
        factors,
        [summary, epochs],
        {"run": training("image", filters, factors["network"], minutes, words, scale)},
    )


VALUES = columns("psnr", PSNR)
INDEX = {"filters": "filters", "network": "network", "bound": "bound on the norms"}
STUDY = Study(
    item="Figure 8.5",
    title="An image as a function",
    points=points,
    views=[
        *(
            Pivot(
                title=f"camera, {pixels} x {pixels} pixels",
                index=INDEX,
                where={"pixels": pixels, "scale": WHOLE},
                values=VALUES,
            )
            for pixels in (64, 128)
        ),
        Pivot(
            title="camera, 64 x 64 pixels, scale of the released code",
            index=INDEX,
            where={"scale": RELEASED},
            values=VALUES,
        ),
        Lines(
            "step",
            "test_psnr",
            by=["network", "bound"],
            where={"pixels": 128},
            label=lambda network, bound: f"{network}, bound {bound}",
        ).chart("camera, 128 x 128 pixels, Fourier filters", "step", "PSNR, dB", whole_x=True),
    ],
)
