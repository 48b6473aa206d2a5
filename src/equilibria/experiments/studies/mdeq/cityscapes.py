"""Table 3.3: sizes on Cityscapes, published and counted; the trainings wait for GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from equilibria.experiments import counterpart
from equilibria.experiments.data import Data
from equilibria.experiments.published import BAI_2022, published
from equilibria.experiments.study import Study
from equilibria.experiments.views import NOT_RUN, Table
from equilibria.train import recipe as recipes

SHAPE, CLASSES = (3, 512, 1024), 19
RECIPES = {f"MDEQ-{size}": f"cityscapes-{size.lower()}-paper" for size in ("small", "large", "XL")}


def _rows(_: Data) -> Iterable[list[Any]]:
    for row in published(BAI_2022, "Table 3.3"):
        yield [row["model"], "thesis", row.get("size", ""), "", row["miou"]]
        if name := RECIPES.get(row["row"]):
            model: Any = replace(recipes.load(name).model, shape=SHAPE, classes=CLASSES)
            for resolutions in ("all", "highest"):
                size = counterpart.parameters(replace(model, resolutions=resolutions))
                words = f"{name}, head on {resolutions} resolution{'s' * (resolutions == 'all')}"
                yield [words, "ours", f"{size / 1e6:.2f}", size, NOT_RUN]


STUDY = Study(
    paper=BAI_2022,
    item="Table 3.3",
    title="Sizes of networks for Cityscapes",
    description="Sizes of MDEQ on Cityscapes beside the published ones; the trainings need GPUs.",
    points=lambda scale: [],
    views=[
        Table(
            title="Table 3.3: Cityscapes, validation images",
            columns=["network", "whose", "size, millions", "parameters", "mean IoU, %"],
            rows=_rows,
            note="Ours: the channels of the authors' configurations, counted without allocating. "
            "Their head reads all resolutions, the thesis's the highest alone. The text of the "
            "thesis says 53.5 million of MDEQ-large, its table 53.0.",
        )
    ],
)
