"""Rows of the tables on images: what the penalty keeps, and what stopping early loses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from equilibria.experiments.data import Data, Frame, select
from equilibria.experiments.published import BAI_2021, published
from equilibria.experiments.studies.jacobian._cost_views import WORDS
from equilibria.experiments.studies.jacobian._costs import LIMITS, READERS
from equilibria.experiments.studies.jacobian._images import BEST, LIMIT, SEEDS, THIRD
from equilibria.experiments.views import DIVERGED, NOT_RUN, first, mean_and_deviation

__all__ = ["classified", "losses", "third"]

Rows = Iterable[Sequence[Any]]


def _cell(data: Data, column: str, **where: Any) -> Any:
    return first(column)(select(data.rows, where))


def _missing(data: Data, network: str, **where: Any) -> str:
    return DIVERGED if _cell(data, "diverged", network=network, **where) else NOT_RUN


def _accuracies(data: Data, **where: Any) -> Frame:
    """Return accuracies on the test images in percent, by seed."""
    return 100 * data.series("accuracy", **where).set_index("seed")["accuracy"].astype(float)


def _against(data: Data, limit: int) -> Frame:
    """Accuracies by seed: without the penalty, as trained and stopped, and with it, stopped."""
    of = {"full": ("plain", LIMIT), "early": ("plain", limit), "kept": (BEST, limit)}
    return pd.DataFrame(
        {name: _accuracies(data, network=n, limit=at) for name, (n, at) in of.items()}
    )


def third(data: Data) -> Rows:
    """What the penalty keeps and what stopping early loses, of each seed and as a mean."""
    frame = _against(data, THIRD).reindex(list(SEEDS[BEST]))
    frame[["step", "epoch"]] = [_speedups(data, seed) for seed in frame.index]
    known = frame.dropna(subset=["full", "early", "kept"])
    means = [(f"mean of {len(known)}", known.mean(skipna=False))] if len(known) else []
    for seed, row in (*frame.iterrows(), *means):
        lost = row["full"] - row[["kept", "early"]]
        costs = lost["kept"] > 0
        over = lost["early"] / lost["kept"] if costs else "the penalty costs nothing"
        reached = [
            _missing(data, network, seed=seed) if pd.isna(row[name]) else row[name]
            for name, network in (("full", "plain"), ("early", "plain"), ("kept", BEST))
        ]
        compared = [None] * 3 if lost.isna().any() else [*lost, over]
        yield str(seed), *reached, *compared, row["step"], row["epoch"]


def _speedups(data: Data, seed: int) -> list[float]:
    """Time of a training step without the penalty over that with it; of an epoch, if measured
    under the same conditions."""
    steps = [_cell(data, "step_ms", reader=name, seed=seed) for name in ("plain", "regularised")]
    points = [data.get(network=name, seed=seed) for name in ("plain", BEST)]
    epochs = [None if point is None else point.get("epoch_seconds") for point in points]
    if None not in epochs and points[0]["conditions"] != points[1]["conditions"]:
        epochs = [None, None]
    return [a / b if a and b else float("nan") for a, b in (steps, epochs)]


def losses(data: Data) -> Rows:
    """Points lost by stopping at each limit, with the penalty and without, over common seeds."""
    for limit in LIMITS[:-1]:
        frame = _against(data, limit).dropna()
        if frame.empty:
            yield limit, NOT_RUN
            continue
        kept, early = (frame["full"].mean() - frame[name].mean() for name in ("kept", "early"))
        yield limit, kept, early, early / kept if kept > 0 else None, len(frame)


def classified(data: Data) -> Rows:
    """Table 2: the paper's rows, and ours."""
    for row in published(BAI_2021, "Table 2"):
        deviation = f" ± {row['deviation']:.1f}" if "deviation" in row else ""
        accuracy = f"{row['accuracy']:.1f}{deviation}"
        yield row["data"], row["model"], "paper", row["size"], accuracy, row.get("evals")
    for reader, (network, limit) in READERS.items():
        seeds, found = SEEDS[network], _accuracies(data, reader=reader).tolist()
        yield (
            _cell(data, "source", network=network) or "CIFAR-10",
            *(WORDS[reader], "ours", _cell(data, "parameters", network=network)),
            mean_and_deviation(found) or _missing(data, network),
            *(limit, f"{len(found)} of {len(seeds)}"),
        )
