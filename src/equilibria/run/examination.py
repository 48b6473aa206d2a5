"""The doctor on a run: which batch is examined, and how."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.metric import Metric
from equilibria.run.evaluation import sums_of
from equilibria.run.models import Model, Prediction
from equilibria.run.run import Run, RunError
from equilibria.run.tasks import Batch, Task
from equilibria.run.trees import to_device
from equilibria.stability import Comparison, Examination, Training, compare_adjoints, doctor
from equilibria.stability.examine import Progress
from equilibria.stability.findings import findings

_Result = TypeVar("_Result")

SAMPLES = 256
"""Samples that are examined."""

SEQUENCES = 8
"""The same where a sample is a sequence, whose state has many more entries."""

_EXCHANGES = 19
"""Random exchanges of the answers among the samples. An answer that is better than all of them is
so by chance in one case of twenty."""

_FEW = 5
"""Samples among which that cannot be asked."""


def examine(
    loaded: Run,
    *,
    samples: int | None = None,
    starts: int = 4,
    seed: int = 0,
    split: str = "test",
    progress: Progress | None = None,
    device: torch.device | str = "cpu",
) -> Examination:
    """Examine a run on the first samples of a split.

    For a text, a sample is a segment of a stream, and other segments precede it, so the model has
    its carry. For a model that solves a segment in pieces, the first piece is examined.

    Args:
        loaded: the run, with its data.
        samples: how many; None for `SAMPLES`, or `SEQUENCES`. All, if there are fewer.
        starts: alternative starts to solve from.
        seed: of starts, probes and projections.
        split: one of the task's.
        progress: as `doctor` takes it.
        device: where to solve.

    Raises:
        RunError: the run is of an explicit network, which has nothing to examine.
    """
    task, model = loaded.data.task_for_doctor(), loaded.model.to(device)
    check_implicit(loaded)
    count = samples or (SEQUENCES if model.reads_segments else SAMPLES)
    batch, carry = _batch(model, task, split, count)
    metric = None if task.streams else task.primary
    examination = _bind(doctor, model, task, batch, carry)(
        figure=None if metric is None else (lambda answer: answer.figures[metric.name]),
        metric=metric or task.loss_metric,
        starts=starts,
        seed=seed,
        chance=None
        if metric is None or batch.samples <= _FEW
        else (lambda answer: _chance(answer, metric)),
        training=_training(loaded),
        progress=progress,
    )
    named = replace(
        examination,
        layer=examination.layer.removeprefix("model."),
        broken=[name.removeprefix("model.") for name in examination.broken],
    )
    return replace(named, findings=findings(named))


def check_implicit(loaded: Run) -> None:
    """Raise RunError unless a run's model solves for one equilibrium in a forward pass."""
    model = loaded.model
    if model.solves_once:
        return
    if loaded.recipe.model.implicit:
        raise RunError(
            f"{loaded.folder} holds a {type(model).__name__}, which solves for several equilibria "
            "in a forward pass, one per layer or per step of a sequence; expected a model with a "
            "single one. How its solves end: equilibria evaluate"
        )
    raise RunError(
        f"{loaded.folder} holds an explicit network ({type(model).__name__}), which solves for no "
        "fixed point, so there is nothing to examine"
    )


def compare(
    loaded: Run,
    *,
    samples: int | None = None,
    split: str = "train",
    floor: float = 0.99,
    repeats: int = 5,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Comparison:
    """Compare the gradients of all adjoints with the exact one, on the first samples of a split.

    Args:
        loaded: the run, with its data.
        samples: how many; None for a batch of the recipe.
        split: one of the task's.
        floor: the smallest cosine that is recommended.
        repeats: of each timing.
        seed: of the comparison.
        device: where to solve.

    Raises:
        RunError: the run is of an explicit network, or there is no such split.
    """
    task, model = loaded.data.task_for_doctor(), loaded.model.to(device)
    check_implicit(loaded)
    if split not in task.splits:
        raise RunError(f"there is no split '{split}'; there are: {', '.join(task.splits)}")
    batch, carry = _batch(model, task, split, samples or loaded.recipe.rows)
    found = _bind(compare_adjoints, model, task, batch, carry)(
        floor=floor, repeats=repeats, seed=seed
    )
    return replace(found, layer=found.layer.removeprefix("model."))


def _bind(
    method: Callable[..., _Result], model: Model, task: Task, batch: Batch, carry: Any
) -> Callable[..., _Result]:
    """Return a method of `stability` on a model with its loss, and on a batch."""
    return functools.partial(
        method,
        _Measured(model, lambda *given: _answer(task, *given)),
        *(batch.inputs, batch.targets, carry),
        loss=lambda answer: answer.loss,
        answer=lambda answer: answer.output,
    )


class _Answer(NamedTuple):
    """What the doctor looks at: the output, its mean loss, and the figures of the batch by name.

    `exchanged` gives the figures where the answers are exchanged among the samples at random, by a
    seed; None where each sample has the target that it had.
    """

    output: Any
    loss: Tensor
    figures: Mapping[str, float]
    exchanged: Callable[[int], Mapping[str, float] | None]


class _Measured(nn.Module):
    """A model with its loss behind it, so that a copy in float64 has both in float64.

    Args:
        model: the model.
        answer: (model, prediction, targets) -> `_Answer`; a plain function, which is not copied.
    """

    def __init__(self, model: Model, answer: Callable[[Model, Prediction, Any], _Answer]) -> None:
        super().__init__()
        self.model, self.answer = model, answer

    def forward(self, inputs: Any, targets: Any, carry: Any) -> _Answer:
        """Return the loss and the figures of the model's answer."""
        return self.answer(self.model, self.model(inputs, carry=carry), targets)


def _answer(task: Task, model: Model, prediction: Prediction, targets: Any) -> _Answer:
    loss = task.loss(model, prediction.output, targets)
    sums = sums_of(model, task, prediction, targets, loss)
    figures = task.figures({k: v.detach() for k, v in sums.items()})

    @torch.no_grad()
    def exchange(seed: int) -> Mapping[str, float] | None:
        def shuffle(x: Tensor) -> Tensor:
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
            return x[order.to(x.device)]

        others = pytree.tree_map_only(Tensor, shuffle, targets)
        pairs = zip(pytree.tree_leaves(targets), pytree.tree_leaves(others), strict=True)
        if all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor)):
            return None
        return _answer(task, model, prediction, others).figures

    return _Answer(prediction.output, loss / sums["units"], figures, exchange)


def _chance(answer: _Answer, metric: Metric) -> float | None:
    """Return the best figure of answers that were exchanged among the samples at random.

    It is a permutation test, at 5 %. None where all targets are alike: nothing can be exchanged.
    """
    found = [answer.exchanged(seed) for seed in range(_EXCHANGES)]
    figures = [each[metric.name] for each in found if each is not None]
    best = max if metric.higher_is_better else min
    return best(figures, default=None)


def _batch(model: Model, task: Task, split: str, count: int) -> tuple[Batch, Any]:
    """Return the batch to examine, and what the model carries over into it."""
    carry, device = None, next(model.parameters()).device

    if task.streams:
        segments = (to_device(each, device) for each in task.batches(split, count))
        first = next(segments)
        batch = next(segments, first)
        if bool((batch.targets >= 0).all()) and not batch.begins:
            with torch.no_grad():
                carry = model(first.inputs).carry
        else:  # the text is too short
            batch = first
    else:
        batch = to_device(task.sample(split, count), device)
    inputs = model.first_piece(batch.inputs)
    if inputs is not batch.inputs:
        batch = batch._replace(inputs=inputs, targets=batch.targets[:, : inputs.shape[1]])
    return batch, carry


def _training(loaded: Run) -> Training:
    """What the recipe says about stability, as it was at the end of the training."""
    recipe, last = loaded.recipe, loaded.metrics[-1] if loaded.metrics else {}
    penalty = recipe.regularizer
    controller = None if penalty is None else penalty.controller
    gamma, probability = (0.0, 1.0) if penalty is None else penalty.at(1, 1)
    return Training(
        gamma=gamma,
        probability=probability,
        budget=None if controller is None else controller.evals,
        precision=recipe.precision,
        status=last.get("train", {}).get("forward", {}).get("status") or {},
    )
