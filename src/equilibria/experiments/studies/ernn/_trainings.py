"""The networks of Table 3, by name, and their trainings."""

from __future__ import annotations

from collections.abc import Sequence

from equilibria.experiments.training import Training
from equilibria.run import recipe as recipes

__all__ = ["BASELINES", "HAR", "SEEDS", "SIZES", "training"]

SEEDS = (0, 1, 2)

ERNN = {f"ERNN (K = {steps})": ("--model.cell.steps", str(steps)) for steps in (1, 3, 5)}

SIZES = {
    "FastRNN": ("FastRNN", 80),
    "FastGRNN-LSQ": ("FastGRNN", 80),
    "FastGRNN, rank 16": ("FastGRNN", 80),
    "RNN": ("RNN", 80),
    "SpectralRNN": ("SpectralRNN", 80),
    "LSTM": ("LSTM", 56),
    "GRU": ("GRU", 64),
    "UGRNN": ("UGRNN", 60),
    "UGRNN, 36 units": ("UGRNN", 36),
    "Antisymmetric": ("AntisymmetricRNN", 100),
}
"""Cell and units of each baseline. Units are chosen so that sizes are near the published ones; 36
units make a UGRNN as small as the equilibrated network."""

OWN = {
    "FastGRNN-LSQ": ("--model.cell.rank", "null"),
    "FastGRNN, rank 16": ("--model.cell.rank", "16"),
    "Antisymmetric": ("--model.cell.step_size", "0.1"),
}
"""Options that a switch of the cell would otherwise take over from the recipe's."""

BASELINES = {
    name: ("--model.cell.name", cell, "--model.hidden", str(units), *OWN.get(name, ()))
    for name, (cell, units) in SIZES.items()
}

HAR = {**BASELINES, **ERNN}
"""Options of the recipe har2 for each network of Table 3."""


def training(recipe: str, options: Sequence[str], seed: int, minutes: float) -> Training:
    """Return a training of a recipe with options."""
    return Training(recipe=recipes.load(recipe, [*options, "--seed", str(seed)]), minutes=minutes)
