"""The trained networks, and the training of solvers for them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from accelerate import Accelerator

from equilibria.experiments.studies.deq._trainings import language, named
from equilibria.experiments.studies.jacobian import _images as images
from equilibria.experiments.study import Scale
from equilibria.experiments.training import Trained, Training
from equilibria.learned import Distillation, Learned, Outcome, distil
from equilibria.nn import using
from equilibria.run import evaluation, neural
from equilibria.run.models import EquilibriumModel
from equilibria.run.tasks import Task
from equilibria.solve import Solver

__all__ = ["SEEDS", "SUBJECTS", "Distilled", "Quality", "distilled", "solving", "training_of"]

MDEQ, MNIST, PTB = "MDEQ", "MNIST", "Penn Treebank"
SEEDS: Mapping[str, Sequence[int]] = {MDEQ: (0, 1, 2), MNIST: (0,), PTB: (0,)}
"""Seeds of each subject: a seed denotes the same network in all studies."""

BATCHES = 24
"""Batches of inputs, a quarter of them for the contest: the default of `equilibria distil`."""


@dataclass(frozen=True)
class Quality:
    """How quality is measured.

    Attributes:
        metric: of the task.
        sign: 1 if higher is better, -1 if lower is.
        near: largest loss of quality that is considered negligible.
        unit: of that loss.
        scale: factor from the metric to that unit.
    """

    metric: str
    sign: int
    near: float
    unit: str
    scale: float

    def loss(self, value: float, end: float) -> float:
        """Loss of quality relative to full solves, whose figure is `end`."""
        return self.sign * (end - value)


_IMAGES = Quality("accuracy", 1, 0.001, "points", 100)
SUBJECTS: Mapping[str, Quality] = {
    MDEQ: _IMAGES,
    MNIST: _IMAGES,
    PTB: Quality("perplexity", -1, 0.5, "perplexity", 1),
}
"""The subjects: MDEQ of `jacobian/tables` without penalty, and the recipes mnist and lm-ptb."""


def training_of(subject: str, scale: Scale, seed: int) -> Training:
    """Return the training of a subject, which is shared with other studies."""
    if subject == MDEQ:
        return images.training_of("plain", scale, seed)
    if subject == PTB:
        return language("transformer", scale, seed)
    return Training(recipe=named("mnist", scale, "--seed", str(seed)), minutes=12)


@dataclass(frozen=True)
class Distilled:
    """A trained network with a solver learned for it.

    Attributes:
        model: in eval mode, with its own solvers.
        task: of its recipe.
        how: options with which the solver was trained.
        outcome: of the contest.
        seconds: total time of training and contest.
        accelerator: whose device the model is on.
    """

    model: EquilibriumModel
    task: Task
    how: Distillation
    outcome: Outcome
    seconds: float
    accelerator: Accelerator

    @property
    def learned(self) -> Learned:
        """The weights of the best learned solver."""
        assert self.outcome.learned.learned is not None
        return self.outcome.learned.learned

    def inputs(self, count: int) -> Any:
        """The first test samples' inputs, on the model's device."""
        return evaluation.to_device(self.task.sample("test", count).inputs, self.accelerator)


def distilled(run: Trained, **changes: Any) -> Distilled:
    """Return a run's network and the solver that `equilibria distil` would learn for it.

    Args:
        run: finished.
        changes: fields of `Distillation` that differ from the defaults; `batch_size` and `batches`
            of the inputs.
    """
    return _distilled(run.folder.path, run.data_dir, tuple(sorted(changes.items())))


@functools.lru_cache(maxsize=2)  # the measures of a point share it
def _distilled(path: Any, data_dir: Any, changes: tuple[tuple[str, Any], ...]) -> Distilled:
    from equilibria.run import run as runs

    loaded = runs.load(path, data_dir=data_dir)
    accelerator = evaluation.accelerator(loaded.recipe.precision)
    model = cast(EquilibriumModel, loaded.model).to(accelerator.device)
    given = dict(changes)
    size = given.pop("batch_size", loaded.recipe.rows)
    count = given.pop("batches", BATCHES)
    how = neural.budgeted(Distillation(**given), model)
    began = time.perf_counter()
    inputs = neural.inputs_of(
        model, loaded.data, batches=count, batch_size=size, seed=how.seed, other=False
    )
    outcome = distil(model.deq, inputs, how)
    seconds = time.perf_counter() - began
    model.deq.neural, model.deq.eval_solver = None, loaded.recipe.eval_solver
    return Distilled(model, loaded.data, how, outcome, seconds, accelerator)


@contextmanager
def solving(
    model: EquilibriumModel, solver: Solver, learned: Learned | None, **fields: Any
) -> Iterator[None]:
    """Make a model in eval mode use one of a contest's solvers within a block.

    Args:
        model: the model.
        solver: replaces its own.
        learned: the solver's weights; None for a classical one.
        fields: fields of the solver to change.
    """
    with using(model, eval_solver=replace(cast(Any, solver), **fields), neural=learned):
        yield
