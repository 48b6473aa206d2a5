"""Views of the trainings on copy memory, Table 1."""

from __future__ import annotations

from typing import Any

from equilibria.experiments.data import Frame
from equilibria.experiments.published import BAI_2019, published
from equilibria.experiments.studies.deq._trainings import COPY_SEEDS, RECURRENT
from equilibria.experiments.views import (
    DIVERGED,
    NOT_RUN,
    Cell,
    Chart,
    Lines,
    Pivot,
    first,
    of,
    ratio,
)

__all__ = ["AGAINST", "CHART", "NETWORKS", "TABLE_1"]

NETWORKS = {"deq": "DEQ-Transformer", "lstm": "LSTM", "gru": "GRU"}
PUBLISHED = published(BAI_2019, "Table 1")


def better(rows: Frame) -> Cell:
    """The smaller loss of the recurrent networks, or why it is not known."""
    losses: list[Any] = [of("loss", network=name)(rows) for name in RECURRENT]
    return next((reason for reason in (NOT_RUN, DIVERGED) if reason in losses), None) or min(losses)


AGAINST = Pivot(
    title="Copy memory: equilibrium against recurrent networks of its size",
    index={"seed": "seed"},
    where={"data": "copy-memory"},
    values={
        **{name.upper(): of("loss", network=name) for name in NETWORKS},
        "DEQ / the better other": ratio(of("loss", network="deq"), better),
    },
    note="Test loss. The recipe copy-memory, at either scale: it has no -gpu size.",
)

TABLE_1 = Pivot(
    title="Table 1: copy memory, T = 400",
    index={"network": "network", "seed": "whose"},
    where={"data": "copy-memory"},
    words={"network": NETWORKS, "seed": {seed: f"ours, seed {seed}" for seed in COPY_SEEDS}},
    values={
        "parameters": "parameters",
        "test loss": of("loss"),
        "minutes": first("seconds", 1 / 60),
    },
    above=[(row["row"], "paper", row["size"], row["loss"]) for row in PUBLISHED],
    note="Cross-entropy in nats, mean over all T + 20 positions (the paper does not say "
    "over which it takes its own). The widths of LSTM and GRU bring their parameters "
    "nearest to the equilibrium network's; they are trained alike.",
)

CHART = Chart(
    title="copy memory: test loss, three seeds",
    x="epoch",
    y="nats",
    marks=Lines(
        x="epoch",
        y="test_loss",
        by=["seed", "network"],
        where={"data": "copy-memory"},
        label=lambda seed, network: "" if seed else network.upper(),
        colours={name: place for place, name in enumerate(NETWORKS)},
    ),
    levels=[(f"{r['row']}, paper", r["loss"]) for r in PUBLISHED if r["row"] != "TCN"],
    log_y=True,
    whole_x=True,
)
