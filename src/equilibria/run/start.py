"""A recipe's model before its first step: stability over ensembles and scales of its weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy
import torch

from equilibria.nn.init import Ensemble
from equilibria.run import evaluation
from equilibria.run.processes import seed_all
from equilibria.run.recipe import Recipe
from equilibria.run.tasks import Task
from equilibria.stability.ensembles import Sweep, sweep
from equilibria.stability.ensembles.measure import DRAWS, SCALES
from equilibria.stability.rescale import UnreachableRadiusError

__all__ = ["ENSEMBLES", "SAMPLES", "SEQUENCES", "examine_start"]

ENSEMBLES: tuple[Ensemble, ...] = ("gaussian", "orthogonal", "goe")
"""The ensembles compared by default."""

SAMPLES = 64
"""Samples to solve."""

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
    progress: Callable[[int, int], None] = lambda done, of: None,
    device: str | None = None,
) -> Sweep:
    """Measure the initial stability of a recipe's model, on the first samples of training.

    The model is the one that training would begin with, including its other weights; a radius that
    the recipe requests is set as in training, on its whole first batch, and the sweep reports if it
    cannot be reached. For a text, a sample is the first segment of a stream, which nothing
    precedes; for a model that solves a segment in pieces, the first piece is used. Everything is
    measured in float32. The state of random generators is preserved.

    Args:
        recipe: its seed is also that of the draws, its `initialisation.layers` selects which
            weights are drawn, and its solver is the one that must converge.
        task: the recipe's.
        ensembles, scales, draws, progress: see `stability.ensembles.sweep`.
        samples: how many; None for `SAMPLES`, or `SEQUENCES`.
        device: where to solve; None for a GPU where there is one.

    Raises:
        ValueError: the recipe is of an explicit network; no samples, or more than the data have;
            the cell has no recurrent weight; or what `sweep` raises.
    """
    kind = type(recipe.model).__name__
    if not recipe.model.implicit:
        raise ValueError(
            f"{kind} describes an explicit network: it solves for no fixed point, so it has no "
            "recurrent weights to initialise"
        )
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be 1 or more; got {samples}")
    with _kept():
        return _examine(recipe, task, ensembles, scales, draws, samples, progress, device)


def _examine(
    recipe: Recipe,
    task: Task,
    ensembles: Sequence[Ensemble],
    scales: Iterable[float],
    draws: int,
    samples: int | None,
    progress: Callable[[int, int], None],
    device: str | None,
) -> Sweep:
    seed_all(recipe.seed)
    model = task.model(recipe.model, **recipe.layer())
    count = samples or task.limit(SEQUENCES if model.reads_segments else SAMPLES)
    accelerator = evaluation.accelerator("float32", device)
    try:
        inputs = task.feed(count, recipe.seed).batch(0).inputs
    except ValueError as error:
        raise ValueError(
            f"samples is {count}, and the training data do not fill such a batch: {error}"
        ) from None
    inputs = evaluation.to_device(model.first_piece(inputs), accelerator)
    refused = ""
    if (asked := recipe.initialisation) is not None:

        def first() -> Any:
            batch = task.feed(recipe.rows, recipe.seed).batch(0)
            return evaluation.to_device(batch.inputs, accelerator)

        try:
            asked.apply(model, first)
        except UnreachableRadiusError as error:
            refused = f"initialisation.radius {asked.radius:g}: {error}"
    model.to(accelerator.device)
    found = sweep(
        model,
        inputs,
        ensembles=ensembles,
        scales=scales,
        draws=draws,
        layers=None if asked is None else asked.layers,
        seed=recipe.seed,
        progress=progress,
    )
    own = None if refused else found.own
    return replace(found, own=own, refused=refused, notes=tuple(_notes(recipe)))


def _notes(recipe: Recipe) -> Iterator[str]:
    """How training differs from what is measured."""
    if recipe.pretrain is not None:
        steps = recipe.pretrain.steps
        first = (
            f"its first {steps:g} steps" if steps >= 1 else f"the first {steps:.0%} of its steps"
        )
        yield (
            f"The recipe trains a shallow network in {first} "
            "(pretrain): its first solves use the weights after these steps."
        )
    if recipe.precision != "float32":
        yield f"The recipe trains in {recipe.precision}; this was measured in float32."


@contextmanager
def _kept() -> Iterator[None]:
    """Preserves the state of all global random generators."""
    python, arrays = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)
