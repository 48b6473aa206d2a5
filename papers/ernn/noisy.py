"""Noise-padded MNIST: 28 rows, then 972 steps of noise."""

from __future__ import annotations

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Chart, Lines, Pivot, first, mean, spread
from papers.ernn.common import SEEDS, training
from papers.published import KAG_2019, published

NETWORKS = {
    "FastRNN": ("--model.cell.name", "FastRNN"),
    "LSTM": ("--model.cell.name", "LSTM", "--model.hidden", "85"),
    "ERNN (K = 1)": (),
}


def points(scale: Scale) -> list[Point]:
    return [
        Point(
            factors={"network": network, "seed": seed},
            measures=[summary, epochs],
            runs={"run": training("noisy-mnist", options, seed, 15 if network == "LSTM" else 5)},
        )
        for network, options in NETWORKS.items()
        for seed in SEEDS
    ]


STUDY = Study(
    paper=KAG_2019,
    item="Table 3, Noisy-MNIST; Figure 4",
    title="Noise-padded MNIST",
    description="Digits row by row, followed by noise up to a thousand steps.",
    note="5,000 images to learn from, against 60,000 in the paper, and 10,000 to test on.",
    points=points,
    views=[
        Pivot(
            title="Noise-padded MNIST",
            index={"network": "network"},
            values={
                "seeds": lambda rows: int(rows["done"].sum()),
                "test accuracy, %": spread("accuracy", 100, ".2f"),
                "parameters": "parameters",
                "epochs": first("last_epoch"),
                "training, s": mean("seconds"),
            },
            above=[
                [f"published: {row['network']}", "", f"{row['accuracy']:g}", row["parameters"]]
                for row in published(KAG_2019, "Table 3")
                if row["data"] == "Noisy-MNIST"
            ],
        ),
        Chart(
            title="test accuracy",
            x="epoch",
            y="%",
            marks=[Lines(x="epoch", y="test_accuracy", by=["network"], scale=100, band=True)],
            levels=[("chance", 10)],
        ),
    ],
)
