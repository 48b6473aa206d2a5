"""Sizes of MDEQ on Cityscapes beside the published ones; the trainings need GPUs."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from equilibria.run import recipe as recipes
from equilibria.run.studies.results import Data, select
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.views import NOT_RUN, Table, first
from papers.measures import counterpart
from papers.published import BAI_2022, read_published

SHAPE, CLASSES = (3, 512, 1024), 19
RECIPES = {f"MDEQ-{size}": f"cityscapes-{size.lower()}-paper" for size in ("small", "large", "XL")}
HEADS = {"all": "all resolutions", "highest": "the highest resolution"}


def size(context: Context) -> dict[str, Any]:
    """The parameters of a network, counted without allocating them."""
    name, head = (str(context.factors[key]) for key in ("network", "head"))
    model: Any = recipes.load(RECIPES[name]).model
    whole = replace(model, shape=SHAPE, classes=CLASSES, resolutions=head)
    return {"parameters": counterpart.parameters(whole)}


def _rows(data: Data) -> Iterable[list[Any]]:
    for row in read_published(BAI_2022, "Table 3.3"):
        yield [row["model"], "thesis", row.get("size", ""), "", f"{row['miou']:.1f}"]
        for head, words in HEADS.items() if row["row"] in RECIPES else ():
            found = select(data.points, {"network": row["row"], "head": head})
            if (count := first("parameters")(found)) is not None:
                count = int(count)
                name = f"{RECIPES[row['row']]}, head on {words}"
                yield [name, "ours", f"{count / 1e6:.2f}M", count, NOT_RUN]


STUDY = Study(
    item="Table 3.3",
    title="Sizes of networks for Cityscapes",
    points=lambda scale: [Point(each, [size]) for each in grid(network=RECIPES, head=HEADS)],
    views=[
        Table(
            title="Table 3.3: Cityscapes, validation images",
            columns=["network", "whose", "size", "parameters", "mean IoU, %"],
            rows=_rows,
            note="Ours: the channels of the authors' configurations, counted without allocating. "
            "Their head reads all resolutions, the thesis's the highest alone. The text of the "
            "thesis says 53.5 million of MDEQ-large, its table 53.0.",
        )
    ],
)
