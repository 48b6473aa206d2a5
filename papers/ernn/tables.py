"""Equilibrated networks on the data sets that need a download or a GPU.

HAR-2 and Noisy-MNIST have studies of their own: ernn/har and ernn/noisy.
"""

from typing import Any

from equilibria.run.studies.measures.epochs import summary
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Pivot, spread
from papers.ernn.common import SEEDS, point
from papers.published import KAG_2019, read_published

RECIPES = {
    "DSA-19": ("dsa19", (1, 3, 5)),
    "Google-12": ("google12", (1, 3, 5)),
    "Google-30": ("google30", (1, 3, 5)),
    "Pixel-MNIST": ("pixel-mnist", (1, 2, 3)),
    "Permute-MNIST": ("permuted-mnist", (1,)),
    "Yelp-5": ("yelp5", (1, 2, 3)),
    "Noisy-CIFAR": ("noisy-cifar10", (1,)),
}
"""Recipe of each data set, and the K that the paper has."""

PTB = "PTB, T = 300"


def points(scale: Scale) -> list[Point]:
    """The data sets need a download or a GPU: at CPU scale nothing of this is expected to run."""
    kinds = [(data, name, k) for data, (name, steps) in RECIPES.items() for k in steps]
    kinds.append((PTB, "lm-ptb-ernn", 1))
    return [
        point(name, ("--model.cell.steps", str(k)), 120, [summary], data=data, K=k, seed=seed)
        for data, name, k in kinds
        for seed in (SEEDS if scale == "gpu" else SEEDS[:1])
    ]


def above(data: str) -> list[list[Any]]:
    """The published rows of a data set: accuracy and parameters."""
    return [
        [f"published: {row['network']}", f"{row['accuracy']:g}", row["parameters"]]
        for row in read_published(KAG_2019, "Table 3")
        if row["data"] == data
    ]


STUDY = Study(
    item="Tables 3, 4 and 6",
    title="Other data sets of the paper",
    points=points,
    views=[
        *(
            Pivot(
                title=f"Table 3: {data}",
                index={"K": "network"},
                where={"data": data},
                words={"K": {k: f"ours: ERNN (K = {k})" for k in (1, 2, 3, 5)}},
                values={
                    "test accuracy, %": spread("accuracy", 100, ".2f"),
                    "parameters": "parameters",
                },
                above=above(data),
            )
            for data in RECIPES
        ),
        Pivot(
            title="Tables 4 and 6: Penn Treebank, segments of 300 words",
            index={"K": "network"},
            where={"data": PTB},
            words={"K": {1: "ours: ERNN (K = 1)"}},
            values={"test perplexity": spread("perplexity"), "parameters": "parameters"},
            above=[
                [f"published: {row['row']}", f"{row['perplexity']:g}", row["parameters"]]
                for row in read_published(KAG_2019, "Table 6")
            ],
        ),
    ],
)
