"""A recipe's model before its first step: stability over ensembles and scales of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from equilibria.models.sequence.base import SequenceModel
from equilibria.nn.init import Ensemble
from equilibria.stability.ensembles import Sweep, sweep
from equilibria.stability.ensembles.measure import DRAWS, SCALES
from equilibria.tasks import Task
from equilibria.train import evaluation
from equilibria.train.initialisation import first_piece
from equilibria.train.recipe import Recipe
from equilibria.train.step import seed_all

__all__ = ["ENSEMBLES", "SAMPLES", "SEQUENCES", "examine_start"]

ENSEMBLES: tuple[Ensemble, ...] = ("gaussian", "orthogonal", "goe")
"""What is compared where nothing else is asked for."""

SAMPLES = 64
"""Samples that are solved for."""

SEQUENCES = 4
"""The same where a sample is a sequence, whose state has many more entries."""


def examine_start(
    recipe: Recipe,
    task: Task,
    *,
    ensembles: Sequence[Ensemble] = ENSEMBLES,
    scales: Iterable[float] = SCALES,
    draws: int = DRAWS,
    samples: int | None = None,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> Sweep:
    """Measure how the model of a recipe would start, on the first samples that training meets.

    The model is the one that training would begin with, its other weights included. Of a text, a
    sample is the first segment of a stream, which nothing precedes; of a model that solves a
    segment in pieces, the first piece is taken. All is measured in float32.

    Args:
        recipe: its seed is that of the draws too, its `initialisation.layers` says which weights
            are drawn, and its solver is the one that must converge.
        task: the recipe's.
        ensembles, scales, draws, told: see `stability.ensembles.sweep`.
        samples: how many; None for `SAMPLES`, or `SEQUENCES`.

    Raises:
        ValueError: the recipe is of an explicit network; the data do not fill such a batch; the
            cell has no recurrent weight; or what `sweep` raises.
    """
    kind = type(recipe.model).__name__
    if not recipe.model.implicit:
        raise ValueError(
            f"{kind} describes an explicit network: it solves for no fixed point, so there are no "
            "recurrent weights whose start could be unstable"
        )
    seed_all(recipe.seed)
    model = task.model(recipe.model, **recipe.layer())
    count = samples or (SEQUENCES if isinstance(model, SequenceModel) else SAMPLES)
    accelerator = evaluation.accelerator("float32")
    try:
        inputs = task.feed(count, recipe.seed).batch(0).inputs
    except ValueError as error:
        raise ValueError(
            f"samples is {count}, and the training data do not fill such a batch: {error}"
        ) from None
    inputs = evaluation.to_device(first_piece(model, inputs), accelerator)
    model.to(accelerator.device)
    begins = recipe.initialisation
    if begins is not None:
        begins.apply(model, inputs)
    return sweep(
        model,
        inputs,
        ensembles=ensembles,
        scales=scales,
        draws=draws,
        layers=None if begins is None else begins.layers,
        seed=recipe.seed,
        told=told,
    )
