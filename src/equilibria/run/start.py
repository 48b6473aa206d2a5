"""A recipe's model before its first step: how a run builds it, and how stable it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator

from equilibria.nn.init import Ensemble
from equilibria.nn.using import in_eval_mode
from equilibria.run import evaluation
from equilibria.run.evaluation import loss_of
from equilibria.run.initialization import InitializationRecord, ShallowStart
from equilibria.run.models import Model
from equilibria.run.processes import keep_random_state, seed_all
from equilibria.run.recipe import Recipe
from equilibria.run.sharding import Sharding, Whole, extent
from equilibria.run.tasks import Batch, Feed, Part, Task
from equilibria.run.tasks.feed import WHOLE
from equilibria.run.transfer import Transfer, transfer
from equilibria.run.trees import to_device
from equilibria.stability.ensembles import Sweep, sweep
from equilibria.stability.ensembles.measure import DRAWS, SCALES
from equilibria.stability.rescale import UnreachableRadiusError

ENSEMBLES: tuple[Ensemble, ...] = ("gaussian", "orthogonal", "goe")
"""The ensembles compared by default."""

SAMPLES = 64
"""Samples to solve."""

SEQUENCES = 4
"""The same where a sample is a sequence, whose state has many more entries."""


# --- the model of a run ---------------------------------------------------------------------------


class TrainingError(RuntimeError):
    """Training cannot continue; the message says why."""


@contextmanager
def as_training_error(before: str = "") -> Iterator[None]:
    """Raise the ValueError of a block, which says what the recipe cannot have, as TrainingError."""
    try:
        yield
    except ValueError as error:
        raise TrainingError(f"{before}{error}") from None


class StartingModel:
    """The model that a run begins with.

    Args:
        recipe: of the run, settled with its task.
        task: the recipe's.
        feed: batches to learn from.
        accelerator: device, processes and precision.
        fresh: the run begins here; otherwise the weights are not initialised as the recipe says.

    Attributes:
        beginning: what the recurrent weights were set to; None if the recipe does not set them.
        transfer: what the run began with of another's weights; None if the recipe names none. If
            the model is sharded, only the first process has this and `beginning`.
        layout: the model on this process.

    Raises:
        TrainingError: the recipe requests a spectral radius that the cell cannot reach; or the
            parameters cannot be sharded as it says.
        CheckpointError: there are no such weights to begin with, or none fits.
    """

    def __init__(
        self, recipe: Recipe, task: Task, feed: Feed, accelerator: Accelerator, *, fresh: bool
    ) -> None:
        self.recipe, self.task, self.feed = recipe, task, feed
        self.accelerator, self.fresh = accelerator, fresh
        self.beginning: InitializationRecord | None = None
        self.transfer: Transfer | None = None
        self.layout = self._lay_out()

    def _lay_out(self) -> Whole | Sharding:
        """Build the model, and shard it across the processes where the recipe says so."""
        recipe, accelerator = self.recipe, self.accelerator
        with as_training_error():
            size = extent(recipe.parallel, recipe.shard, accelerator.num_processes)
        if size == 1:
            return Whole(self._build(), accelerator)
        build, empty = self._build, self._empty
        keep = recipe.regularizer is not None or recipe.correction is not None
        with as_training_error():
            return Sharding(build, empty, accelerator, size, keep=keep, trial=self._try)

    def _empty(self) -> Model:
        """Return the model with the weights that it is built with."""
        seed_all(self.recipe.seed)
        return self.task.model(self.recipe.model, **self.recipe.layer())

    def _build(self) -> Model:
        """Return the model with the weights that the run starts from."""
        recipe, model = self.recipe, self._empty()
        if self.fresh and (asked := recipe.initialization) is not None:
            before = f"initialization.radius {asked.radius or 0:g}: "
            with nullcontext() if asked.radius is None else as_training_error(before):
                self.beginning = asked.apply(model, lambda: self._batch().inputs)
        if self.fresh and recipe.init_from is not None:
            self.transfer = transfer(recipe.init_from, model)
        return model

    def _batch(self, part: Part = WHOLE) -> Batch:
        """Return the first batch of training, the same on all processes, on their device."""
        return to_device(self.feed.batch(0, part), self.accelerator.device)

    @torch.no_grad()
    def _try(self, model: Model) -> None:
        """Evaluate a model and its loss on one row, by a shallow network: any would do."""
        batch = self._batch(Part(0, self.recipe.rows))
        shallow = ShallowStart(layers=1).unroll(model) if self.recipe.solver else nullcontext()
        with shallow, self.accelerator.autocast(), in_eval_mode(model):
            loss_of(model, self.task, model(batch.inputs), batch.targets, self.accelerator)


# --- stability ------------------------------------------------------------------------------------


@keep_random_state()
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
        recipe: its seed is also that of the draws, its `initialization.layers` selects which
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
    inputs = to_device(model.first_piece(inputs), accelerator.device)
    refused = ""
    if (asked := recipe.initialization) is not None:

        def first() -> Any:
            batch = task.feed(recipe.rows, recipe.seed).batch(0)
            return to_device(batch.inputs, accelerator.device)

        try:
            asked.apply(model, first)
        except UnreachableRadiusError as error:
            refused = f"initialization.radius {asked.radius:g}: {error}"
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
