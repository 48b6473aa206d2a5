"""Digits row by row, followed by noise up to a thousand steps.

5,000 images to learn from, against 60,000 in the paper, and 10,000 to test on.
"""

from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Lines, Pivot, first, mean, spread
from papers.ernn.common import SEEDS, point
from papers.published import KAG_2019, read_published

NETWORKS = {
    "FastRNN": ("--model.cell.name", "FastRNN"),
    "LSTM": ("--model.cell.name", "LSTM", "--model.hidden", "85"),
    "ERNN (K = 1)": (),
}


def points(scale: Scale) -> list[Point]:
    return [
        point("noisy-mnist", options, 15 if network == "LSTM" else 5, network=network, seed=seed)
        for network, options in NETWORKS.items()
        for seed in SEEDS
    ]


STUDY = Study(
    item="Table 3, Noisy-MNIST; Figure 4",
    title="Noise-padded MNIST",
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
                for row in read_published(KAG_2019, "Table 3")
                if row["data"] == "Noisy-MNIST"
            ],
        ),
        Lines("epoch", "test_accuracy", by=["network"], scale=100, band=True).chart(
            "test accuracy", "epoch", "%", levels=[("chance", 10)]
        ),
    ],
)
