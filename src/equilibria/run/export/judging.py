"""What an exported file does on real inputs, beside the model that it was made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from equilibria.run.evaluation import sums_of
from equilibria.run.export.exporting import Exported, refuse_task
from equilibria.run.export.inference import exportable, find_iterated, layers, pairs
from equilibria.run.export.iterated import Method
from equilibria.run.models import Model, Prediction
from equilibria.run.tally import Tally
from equilibria.run.tasks import Task

TOLERANCE = 1e-5
"""How far the logits of a float32 file may be from PyTorch's, relative to the largest of them."""


@dataclass(frozen=True)
class Judgment:
    """A file and its model on the same samples.

    Attributes:
        samples: how many.
        difference: largest distance of a logit of the file from that of the exported model.
        from_run: largest distance of a logit of the file from that of the model of the run, whose
            layers solve to their tolerance: what the fixed number of evaluations changes.
        scale: largest absolute value of a logit of the exported model.
        figures: the task's figures of the file, by name.
        model_figures: those of the model of the run.
        changed: share of samples whose largest logit is another than in the model of the run.
        residual: mean and maximum over all solves of ||f(z) - z|| / ||f(z)|| after the last
            evaluation; None of a model without equilibrium layers.
    """

    samples: int
    difference: float
    from_run: float
    scale: float
    figures: dict[str, float]
    model_figures: dict[str, float]
    changed: float
    residual: tuple[float, float] | None

    @property
    def relative(self) -> float:
        """The difference relative to the scale."""
        return self.to_scale(self.difference)

    def to_scale(self, distance: float) -> float:
        """Return a distance of logits relative to the largest one."""
        if distance == 0.0:
            return 0.0
        return distance / self.scale if self.scale else math.inf

    @property
    def finite(self) -> bool:
        """Whether all logits of the file are finite, and as many as the model's."""
        return math.isfinite(self.difference)

    def agrees(self, tolerance: float = TOLERANCE) -> bool:
        """Return whether a float32 file is what was exported, to a relative tolerance."""
        return self.relative <= tolerance  # and not NaN


@torch.no_grad()
def judge(
    exported: Exported,
    model: Model,
    task: Task,
    *,
    split: str | None = None,
    batch_size: int = 500,
    samples: int | None = None,
) -> Judgment:
    """Run a file, the model that was exported and that of the run on a split.

    Args:
        exported: the file.
        model: of the run, in evaluation mode on the CPU; its equilibrium layers solve to their
            tolerance.
        task: gives data and figures.
        split: one of its splits; None for the one that follows each epoch of training.
        batch_size: samples of a batch.
        samples: of the first ones, to take no more; None for all.
    """
    split = split or task.eval_split
    ours, theirs = Tally(), Tally()
    difference, from_run, scale, changed, count = 0.0, 0.0, 0.0, 0, 0
    solves = find_iterated(exported.model)
    found: list[Tensor] = []
    for pair in pairs(task, split, batch_size, samples):
        logits = exported.logits(pair.raw)
        for layer in solves:
            layer.residuals = []
        expected = exported.model(pair.inputs).output
        for layer in solves:
            found += [each[-1] for each in layer.residuals or ()]
            layer.residuals = None
        right = model(pair.inputs).output if solves else expected
        difference = _farther(difference, logits, expected)
        from_run = _farther(from_run, logits, right)
        scale = max(scale, float(expected.abs().max()))
        changed += int((logits.argmax(1) != right.argmax(1)).sum())
        count += len(right)
        for tally, output in ((ours, logits), (theirs, right)):
            loss = task.loss(model, output, pair.targets)
            prediction = Prediction(output, ())
            tally.add(sums_of(model, task, prediction, pair.targets, loss))
    residuals = torch.cat(found) if found else None
    return Judgment(
        samples=count,
        difference=difference,
        from_run=from_run,
        scale=scale,
        figures=task.figures(ours.sums, split),
        model_figures=task.figures(theirs.sums, split),
        changed=changed / count,
        residual=None if residuals is None else (float(residuals.mean()), float(residuals.max())),
    )


def _farther(before: float, logits: Tensor, others: Tensor) -> float:
    """The larger of a distance and the largest one of two batches of logits, NaN where any is."""
    if logits.shape != others.shape:
        return math.nan
    distance = float((logits - others).abs().max())
    return max(before, distance) if math.isfinite(before + distance) else math.nan


@torch.no_grad()
def find_evals(model: Model, task: Task, method: Method, batch_size: int = 500) -> int:
    """Return how many evaluations bring a batch to the tolerance of the model's own solver.

    They are the fewest after which every sample of the first batch of the evaluation split is
    within it; or where none are, the solver's own limit.

    Args:
        model: with equilibrium layers.
        task: gives the samples.
        method: how evaluations follow from each other.
        batch_size: samples of the batch.

    Raises:
        ExportError: the model cannot be exported in this way.
    """
    refuse_task(task)
    solvers = [layer.eval_solver or layer.solver for layer in layers(model)]
    limit = max(solver.max_evals for solver in solvers)
    rtol = min(solver.finest for solver in solvers)
    copy = exportable(model, limit, method)
    solves = find_iterated(copy)
    for layer in solves:
        layer.residuals = []
    (pair,) = islice(pairs(task, task.eval_split, batch_size), 1)
    copy(pair.inputs)
    worst = torch.stack([each.amax(1) for layer in solves for each in layer.residuals or ()])
    within = (worst.amax(0) <= rtol).nonzero()
    return max(1, int(within[0])) if len(within) else limit
