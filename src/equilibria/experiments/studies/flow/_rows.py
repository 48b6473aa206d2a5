"""Rows of the tables of flow/pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, product
from typing import Any

from equilibria.experiments.data import Data
from equilibria.experiments.published import BAI_2022, published
from equilibria.experiments.studies.flow._errors import RESIDUAL_AT, gain
from equilibria.experiments.studies.flow._networks import NETWORKS, RAFT, THESIS

__all__ = ["correlations", "from_paper", "scenes"]

_TRAINING = ("sintel_clean", "sintel_final", "kitti_epe", "kitti_f1")


def from_paper() -> Iterable[Sequence[Any]]:
    """Errors on the training pairs of Sintel and KITTI, and of further trained networks on the
    hidden test pairs."""
    for row in published(BAI_2022, "Table 7.1"):
        if "sintel_clean" in row:
            yield [row["row"].removeprefix("C+T: "), *(row.get(name) for name in _TRAINING)]
        elif "test_clean" in row:
            name = row["row"].removeprefix("C+T+S+K+H: ")
            clean, final, f1 = (row.get(each) for each in ("test_clean", "test_final", "test_f1"))
            yield [f"{name}, all sets, test servers", clean, final, None, f1]


def correlations(data: Data) -> Iterable[Sequence[Any]]:
    """How residual and error go together, over the test pairs of all seeds."""
    (row,) = published(BAI_2022, "Figure 7.7")
    yield ["published, KITTI", None, None, row["pearson"], None, None]
    found = data.series("residual", on="generated")
    for name, evals in () if found.empty else product(NETWORKS, RESIDUAL_AT):
        rows = found[(found["network"] == name) & (found["evals"] == evals)]
        if len(rows):
            each = (rows[key] for key in ("residual", "moves"))
            yield [name, evals, *chain(*((x.mean(), rows["epe"].corr(x)) for x in each))]


def scenes(data: Data) -> Iterable[Sequence[Any]]:
    found = data.series("motion", on="Sintel")
    for name in () if found.empty else (RAFT, THESIS):
        rows = found[found["network"] == name]
        if len(rows):
            yield [name, rows["seed"].nunique(), gain(rows)]
