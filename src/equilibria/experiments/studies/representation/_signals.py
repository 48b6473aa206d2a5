"""Shared by the studies of sound, film and shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.experiments.measures.epochs import summary
from equilibria.experiments.published import BAI_2022, published
from equilibria.experiments.studies.representation._networks import training
from equilibria.experiments.study import Point, Scale

__all__ = ["from_paper", "points"]


def points(
    base: str,
    kinds: Iterable[tuple[str, int, str]],
    scale: Scale,
    minutes: float,
    words: Sequence[str] = (),
) -> list[Point]:
    """Return a point for each training of a recipe: filters, seed and network.

    Args:
        base: the recipe at CPU scale.
        kinds: filters, seed and network of each training.
        scale: size of the recipes.
        minutes: estimated duration of each training.
        words: further options.
    """
    return [
        Point(
            factors={"filters": filters, "network": network, "seed": seed},
            measures=[summary],
            runs={
                "run": training(
                    base, filters, network, minutes, ["--seed", str(seed), *words], scale
                )
            },
        )
        for filters, seed, network in kinds
    ]


def from_paper(item: str) -> Iterable[Sequence[Any]]:
    """The rows of a table of the thesis."""
    return [list(row.values()) for row in published(BAI_2022, item)]
