"""Training speed of an epoch: units per second, evaluations per process, operations per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.models import Model
from equilibria.tasks import Batch, Task
from equilibria.train import randomness
from equilibria.train.config import ConfigError
from equilibria.train.hardware import peak_of
from equilibria.train.plan_inputs import Reads, reads_of
from equilibria.train.plan_step import trace
from equilibria.train.recipe import Recipe
from equilibria.train.tally import Tally

__all__ = ["Cost", "cost_of", "imbalance", "throughput"]


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of training, per sample or stream.

    Attributes:
        rest: of a step, outside the solver loops: injection, readout and loss, forward and
            backward; and one more evaluation of f in the backward, with its parameters' gradient.
        evaluation: of one evaluation of f.
        product: of one vector-Jacobian product.
    """

    rest: float
    evaluation: float
    product: float

    def of(self, tally: Tally, samples: int) -> float:
        """Return the operations for a tally of `samples` samples.

        Only the evaluations in which a sample was active are counted: those that a batch spends on
        samples that have already stopped are not part of the model's work.
        """
        forward, adjoint = (
            sum(evals * count for evals, count in solve.evals.items())
            for solve in (tally.forward, tally.adjoint)
        )
        return samples * self.rest + forward * self.evaluation + adjoint * self.product


_known: dict[str, Cost | None] = {}
"""Costs already computed in this process, which usually trains a single recipe."""


def cost_of(recipe: Recipe, task: Task, batch: Batch) -> Cost | None:
    """Return the cost of training, found by tracing a step without computing it.

    This runs on the meta device: nothing is allocated or drawn, and no process waits for another.

    Args:
        recipe: with all values resolved.
        task: its task.
        batch: one of its batches.

    Returns:
        The cost; None where it does not follow from shapes alone, as for graphs.
    """
    shapes = [tuple(x.shape[1:]) for x in pytree.tree_leaves(batch.inputs) if isinstance(x, Tensor)]
    key = f"{recipe.model!r} {recipe.adjoint!r} {shapes}"
    if key not in _known:
        state = randomness.random_state()
        try:
            reads = reads_of(recipe.model, task, batch)
            _known[key] = _of(recipe, _matrices_alone(reads))
        # On tensors without data a model may fail with any of torch's errors.
        except (ConfigError, RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            _known[key] = None
        finally:
            randomness.set_random_state(state)
    return _known[key]


def _of(recipe: Recipe, reads: Reads) -> Cost:
    step = trace(reads, recipe, 2, quick=True)
    solves = step.rows * max(1, step.solves)
    return Cost(step.rest / step.rows, step.one_evaluation / solves, step.one_product / solves)


def _matrices_alone(reads: Reads) -> Reads:
    """Replace a loss without matrix products, which may read data, by a sum of the outputs."""
    if reads.unit == "tokens":  # the softmax is part of the loss
        return reads

    def total(model: Model, output: Any, targets: Any) -> Tensor:
        leaves = (x for x in pytree.tree_leaves(output) if isinstance(x, Tensor))
        return torch.stack([leaf.sum() for leaf in leaves if leaf.is_floating_point()]).sum()

    return Reads(**{**vars(reads), "loss": total})


def imbalance(
    works: Sequence[Sequence[int]], accumulate: int = 1
) -> tuple[float, float, float] | None:
    """Return the load imbalance between processes.

    In each step a process performs as many evaluations and products as its slowest sample needs,
    and the step ends when the last process has finished. With w_rs the work of process r in step s,

        idle = 1 - sum_s mean_r w_rs / sum_s max_r w_rs.

    Args:
        works: for each process, evaluations and products of each of its micro-batches.
        accumulate: micro-batches per step; processes wait for each other after the last.

    Returns:
        The mean over steps of the mean over processes, the mean over steps of the maximum, and the
        idle fraction; None if there were no solves.
    """
    steps = min(map(len, works), default=0) // accumulate
    if not steps:
        return None
    of_step = [
        [sum(work[accumulate * s : accumulate * (s + 1)]) for work in works] for s in range(steps)
    ]
    mean = sum(sum(work) / len(work) for work in of_step) / steps
    largest = sum(map(max, of_step)) / steps
    return mean, largest, 1.0 - mean / largest if largest else 0.0


def throughput(
    tallies: Sequence[Mapping[str, Any]],
    total: Tally,
    seconds: float,
    *,
    unit: str,
    accumulate: int = 1,
    samples: int = 0,
    cost: Cost | None = None,
    device: torch.device | None = None,
    precision: str = "float32",
) -> dict[str, Any]:
    """Return the throughput record of an epoch, over all processes.

    Args:
        tallies: `Tally.state` of each process.
        total: the sum of all tallies.
        seconds: wall-clock time of the steps.
        unit: of the task.
        accumulate: micro-batches per step.
        samples: number of samples trained on, over all processes.
        cost: operations per sample; None if unknown.
        device: of a process; its peak is taken for every process.
        precision: of the recipe.

    Returns:
        `units_per_second` in the task's unit; `evaluations`, products included, per step, mean and
        maximum over processes, and the resulting `idle` fraction; `flops_per_second`, and
        `peak_share`, its ratio to the peak of all devices. Unknown values are None.
    """
    per_second = 1.0 / seconds if seconds > 0.0 else 0.0
    record: dict[str, Any] = {"units_per_second": total.units * per_second, "unit": unit}
    found = imbalance([state.get("work", ()) for state in tallies], accumulate)
    if found is not None:
        mean, largest, idle = found
        record |= {"evaluations": {"mean": mean, "max": largest}, "idle": idle}
    flops = None if cost is None else cost.of(total, samples) * per_second
    peak = None if device is None else peak_of(device, precision)
    share = None if flops is None or peak is None else flops / (peak * len(tallies))
    return record | {"flops_per_second": flops, "peak_share": share}
