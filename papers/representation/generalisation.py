"""Training on a quarter of an image's pixels, evaluation on another quarter.

Eight of scikit-image's photographs and eight images of generated lettering, 128 x 128 pixels, in
their own colours. Networks are trained on the 4,096 pixels in even rows and columns for 1,000 steps
of the recipe image, and evaluated on those in odd ones. Implicit networks have bound .97, explicit
ones none. Scale n/4, with n the pixels of a side, is the released one, 128 at 512 x 512 pixels;
sines use half of each.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from equilibria.run.recipe import Recipe
from equilibria.run.studies.measures.epochs import summary
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Pivot, Table, number, spread
from equilibria.zoo.signal.data.sets import NAMES
from papers.published import BAI_2022, read_published
from papers.representation.common import FILTERS, recipe

TEXTS = tuple(f"text-{number}" for number in range(1, 9))
IMAGES = {"photographs": NAMES, "text-images": TEXTS}
SIZE = {"cpu": 128, "gpu": 512}
WIDTHS = {"cpu": (128, 64), "gpu": (512, 256)}
NETWORKS = (
    *("implicit 1L-{0}D", "explicit 4L-{1}D", "explicit 1L-{0}D"),
    *("implicit 1L-{1}D", "explicit 1L-{1}D"),
)
SCALES = RELEASED, TWICE = "n/4", "n/2"
BETTER = "the better for each"
PUBLISHED = ("1L-256D", "1L-512D", "4L-256D")


def points(scale: Scale) -> list[Point]:
    names = [each.format(*WIDTHS[scale]) for each in NETWORKS]
    # Image by image, so that stopping early leaves complete comparisons on fewer images.
    images = [
        each for pair in zip(NAMES, TEXTS, strict=True) for each in zip(IMAGES, pair, strict=True)
    ]
    return [
        point(data, image, start, filters, name, scale)
        for start, compared in ((RELEASED, names), (TWICE, names[:2]))
        for data, image in images
        for filters in FILTERS
        for name in compared
    ]


def point(data: str, image: str, start: str, filters: str, network: str, scale: Scale) -> Point:
    """Return the point of one network on one image."""
    found = _recipe(start, filters, network, scale)
    task: Any = replace(cast(Any, found.task), data=data, signal=image)
    return Point(
        {"scale": start, "filters": filters, "network": network} | {"data": data, "image": image},
        [summary],
        {"run": Training(replace(found, task=task), 0.3)},
    )


@functools.cache
def _recipe(start: str, filters: str, network: str, scale: Scale) -> Recipe:
    """The recipe, which is the same for all images."""
    size = SIZE[scale]
    frequencies = size / (4 if start == RELEASED else 2) / (2 if filters == "sines" else 1)
    words = ["--task.size", str(size), "--task.split", "quarter"]
    words += ["--model.scale", str(frequencies)]
    base = "image-gpu" if scale == "gpu" else "image"
    return recipe(base, filters, network, *words)


def _rows(data: Data) -> Iterable[Sequence[Any]]:
    """The differences between the first two networks, image by image: at each scale, and with each
    network at the scale that is better for it on average."""
    found = data.series("psnr")
    if found.empty:
        return
    for (filters, kind), rows in found.groupby(["filters", "data"], sort=False):
        cells = rows.pivot(index="image", columns=["network", "scale"], values="psnr")
        for widths in WIDTHS.values():
            names = [each.format(*widths) for each in NETWORKS[:2]]
            pairs = {}
            for scale in SCALES:
                if {(name, scale) for name in names} <= set(cells):
                    both = cells[[(name, scale) for name in names]].dropna()
                    pairs[scale] = [both[name, scale] for name in names]
            if len(pairs) == len(SCALES):
                whole = cells[[(name, scale) for name in names for scale in SCALES]].dropna()
                pairs[BETTER] = [whole[name, whole[name].mean().idxmax()] for name in names]
            for scale, (first, second) in pairs.items():
                if not len(first):
                    continue
                apart = first - second
                error = apart.std() / len(apart) ** 0.5
                better = f"{(apart > 0).sum()} of {len(apart)}"
                yield [filters, kind, scale, apart.mean(), error, better]


def _list_published() -> Iterable[Sequence[Any]]:
    for row in read_published(BAI_2022, "Table 8.1"):
        yield list(row.values())


STUDY = Study(
    item="Table 8.1",
    title="Held-out pixels",
    points=points,
    views=[
        Pivot(
            title="Table 8.1: PSNR on held-out pixels",
            index={
                "scale": "scale",
                "filters": "filters",
                "network": "network",
                "data": "images",
            },
            values={
                "parameters": lambda rows: int(rows["parameters"].iloc[0]),
                "images": number("psnr"),
                "PSNR, dB": spread("psnr", 1, ".2f"),
            },
        ),
        Table(
            title="Implicit network minus explicit network with four layers and equal size",
            columns=[
                *("filters", "images", "scale", "difference, dB", "standard error, dB"),
                "implicit is better",
            ],
            rows=_rows,
            note="Mean PSNR differences, paired by image. The better scale is the one with the "
            "higher mean PSNR on the same held-out pixels.",
        ),
        Table(
            title="Table 8.1, published",
            columns=[
                "network",
                *(f"{kind}: {size}" for kind in ("natural", "text") for size in PUBLISHED),
            ],
            rows=lambda data: _list_published(),
            note="Mean PSNR in dB over 16 images of 512 x 512 pixels.",
        ),
    ],
)
