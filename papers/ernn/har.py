"""Equilibrated networks and nine others on windows of a smartphone's sensors.

HAR-2 (rebuilt): windows cut anew from the raw signals of the same recordings, 7,415 to learn from
and 2,996 of other volunteers to test on; figures are not comparable to the published ones to the
last point. Hyper-parameters were chosen on a fifth of the training volunteers; then all are trained
on, as in the paper. All networks have the same recipe, epochs and preparation. ERNN starts its
Euler steps at h_(k-1) (eq. 5); its activation is tanh; the paper's, ReLU, is in Table 5. How start
and activation were chosen is in ernn/starts. Inference: ours on the CPU, per window in batches of
500; published: one window on a GPU.
"""

from collections.abc import Sequence
from typing import Any

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Lines, Pivot, first, mean, spread
from papers.ernn.common import HAR, SEEDS, cost, eigenvalues, point
from papers.published import KAG_2019, read_published

ACTIVATIONS = ("relu", "sigmoid", "tanh")


def options(network: str, activation: str) -> Sequence[str]:
    """Return the options of a network, with another activation where one is named."""
    named = () if activation == "" else ("--model.cell.activation", activation)
    return (*HAR[network], *named)


def points(scale: Scale) -> list[Point]:
    kinds = [(name, "", seed) for name in HAR for seed in SEEDS]
    ernns = [name for name in HAR if name.startswith("ERNN")]
    kinds += [(name, "relu", seed) for name in ernns for seed in SEEDS]
    kinds += [(name, phi, 0) for name in ernns for phi in ("sigmoid", "tanh")]
    return [
        point(
            "har2",
            options(network, activation),
            1.5,
            [
                *(summary, cost, epochs),
                *([eigenvalues] if network.startswith("ERNN") and seed == 0 else []),
            ],
            network=network,
            activation=activation or "recipe",
            seed=seed,
        )
        for network, activation, seed in kinds
    ]


def rows(item: str, **where: Any) -> list[list[Any]]:
    """The published figures: accuracy, parameters, size."""
    return [
        [
            f"published: {row['network']}",
            *([row["activation"]] if "activation" in row else []),
            *("", f"{row['accuracy']:g}", "", row["parameters"], row["size"], ""),
            row.get("test_ms", ""),
        ]
        for row in read_published(KAG_2019, item)
        if all(row[name] == value for name, value in where.items())
    ]


FIGURES = {
    "seeds": lambda rows: int(rows["done"].sum()),
    "test accuracy, %": spread("accuracy", 100, ".2f"),
    "best, %": lambda rows: round(100 * rows["accuracy"].max(), 2),
    "parameters": "parameters",
    "size, KB": first("bytes", 1 / 1024),
    "training, s": mean("seconds"),
    "inference, ms/window": mean("inference_ms"),
}

STUDY = Study(
    item="Tables 3 and 5, Figures 4 and 5",
    title="HAR-2",
    points=points,
    views=[
        Pivot(
            title="Table 3: HAR-2",
            index={"network": "network"},
            where={"activation": "recipe"},
            values=FIGURES,
            above=rows("Table 3", data="HAR-2"),
        ),
        Pivot(
            title="Table 5: activations",
            index={"network": "network", "activation": "activation"},
            where={"activation": ACTIVATIONS},
            values=FIGURES,
            above=rows("Table 5"),
        ),
        Pivot(
            title="Figure 5: eigenvalues of diag(phi') P U - I on test windows",
            index={"network": "network", "activation": "activation"},
            where={"seed": 0, "network": [name for name in HAR if name.startswith("ERNN")]},
            whole=True,
            values={
                "negative real part, %": first("negative", 100),
                "largest real part": first("top"),
            },
            note="At the states that K Euler steps reach, which are not the equilibria.",
        ),
        *(
            Lines("epoch", column, by=["network"], where={"activation": "recipe"}).chart(
                f"Figure 4: {what}", "epoch", label, log_y=column == "train_loss"
            )
            for what, label, column in (
                ("training loss", "loss", "train_loss"),
                ("test accuracy", "share", "test_accuracy"),
            )
        ),
        Lines("real", "share", by=["network"], where={"activation": "recipe"}).chart(
            "Figure 5: eigenvalues of diag(phi') P U - I", "real part", "share of all"
        ),
    ],
)
