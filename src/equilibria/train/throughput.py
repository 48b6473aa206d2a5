"""How fast an epoch trained: units a second, evaluations of each process, operations a second."""

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
    """Floating-point operations that training needs, of one sample or stream.

    Attributes:
        rest: of a step, apart from what is repeated: injection, readout and loss, forward and
            backward, and in backward f once more with the gradient of its parameters.
        evaluation: of an evaluation of f.
        product: of a vector-Jacobian product.
    """

    rest: float
    evaluation: float
    product: float

    def of(self, tally: Tally, samples: int) -> float:
        """Return the operations behind a tally of so many samples.

        A sample counts the evaluations that it took part in until it finished: what a batch
        evaluates of finished samples beside the others is no work of the model.
        """
        forward, adjoint = (
            sum(evals * count for evals, count in solve.evals.items())
            for solve in (tally.forward, tally.adjoint)
        )
        return samples * self.rest + forward * self.evaluation + adjoint * self.product


_known: dict[str, Cost | None] = {}
"""Costs that have been found in this process, which trains one recipe, mostly."""


def cost_of(recipe: Recipe, task: Task, batch: Batch) -> Cost | None:
    """Return what training costs, found by following a step without computing it.

    It is done on the meta device: nothing is allocated or drawn, and no process waits for another.

    Args:
        recipe: settled.
        task: its task.
        batch: one of its batches.

    Returns:
        None where a step's operations do not follow from shapes alone, as those of graphs.
    """
    shapes = [tuple(x.shape[1:]) for x in pytree.tree_leaves(batch.inputs) if isinstance(x, Tensor)]
    key = f"{recipe.model!r} {recipe.adjoint!r} {shapes}"
    if key not in _known:
        state = randomness.random_state()
        try:
            reads = reads_of(recipe.model, task, batch)
            _known[key] = _of(recipe, _matrices_alone(reads))
        # On tensors without numbers a model may fail in any way that torch has for it.
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
    """The same with a loss that reads no numbers, where the real one multiplies no matrices."""
    if reads.unit == "tokens":  # the softmax is part of the loss
        return reads

    def total(model: Model, output: Any, targets: Any) -> Tensor:
        leaves = (x for x in pytree.tree_leaves(output) if isinstance(x, Tensor))
        return torch.stack([leaf.sum() for leaf in leaves if leaf.is_floating_point()]).sum()

    return Reads(**{**vars(reads), "loss": total})


def imbalance(
    works: Sequence[Sequence[int]], accumulate: int = 1
) -> tuple[float, float, float] | None:
    """Return what processes of unequal work wait for each other.

    A step of each process takes as many evaluations and products as its slowest sample, and ends
    when the last process has finished. With w the work of process r in step s,

        idle = 1 - sum_s mean_r w_rs / sum_s max_r w_rs.

    Args:
        works: of each process, evaluations and products of each of its micro-batches.
        accumulate: micro-batches of a step; processes wait for each other after the last.

    Returns:
        Mean over steps of the mean over processes, mean over steps of the largest, and the idle
        share; None where there were no solves.
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
    """Return the record of an epoch's speed, over all processes.

    Args:
        tallies: `Tally.state` of each process.
        total: all of them together.
        seconds: that the steps took.
        unit: of the task.
        accumulate: micro-batches of a step.
        samples: that were trained on, over all processes.
        cost: operations of one; None where it is not known.
        device: of a process; its peak counts for each of them.
        precision: of the recipe.

    Returns:
        `units_per_second` by the task's unit; `evaluations` and products of a step, mean and
        largest over the processes, and the `idle` share that follows from them; `flops_per_second`,
        and its share of the devices' peak, `peak_share`. None stands for what is not known.
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
