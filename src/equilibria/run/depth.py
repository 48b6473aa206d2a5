"""Whether a trained model uses its depth: what its answers owe to the evaluations of its solves."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria import draws
from equilibria.metric import Metric
from equilibria.nn.using import in_eval_mode
from equilibria.run.evaluation import loss_of, sums_of
from equilibria.run.models import EquilibriumModel, Prediction
from equilibria.run.records import SplitDepth
from equilibria.run.tally import Tally
from equilibria.run.tasks import Batch, Task
from equilibria.run.trees import to_device
from equilibria.solve import Status

LACKING = 0.01
"""Share of the final figure by which an early one may differ and count as equal."""

FEW = 2
"""Evaluations that an answer may need without its model's depth being of use."""

NOTHING = 1.0
"""Best figure in % below which a model solves next to nothing, whatever its depth."""

OTHER = "another sample's solution"
"""The kind of start that a batch of one sample does not have."""


@dataclass(frozen=True)
class StartFigures:
    """Where solves from a kind of start lead.

    Attributes:
        figure: the primary one of their answers.
        evals: mean.
        converged: share of the samples.
        same: share whose output is within 1 % of that from the layer's own start.
    """

    figure: float
    evals: float
    converged: float
    same: float


@dataclass(frozen=True, kw_only=True)
class DepthReport:
    """What a model's answers owe to the evaluations of its solves, on a split.

    Attributes:
        split, samples: what it was measured on.
        metric: the primary one, which all figures are of.
        figure: at the end of the solves.
        at: read from the iterate after so many evaluations.
        evals: of each sample.
        converged: share of the samples.
        starts: of solves that begin elsewhere, by kind of start.
        right_after: of each sample whose answer is right at the end, the evaluations after which it
            stays right; empty where the task does not judge answers one by one.
        right_evals: of the same samples, the evaluations of their solves.
        difficulty: of each sample; empty where the task does not measure it.
    """

    split: str
    samples: int
    metric: str
    figure: float
    at: dict[int, float]
    evals: list[int]
    converged: float
    starts: dict[str, StartFigures]
    right_after: list[int]
    right_evals: list[int]
    difficulty: list[float]

    @property
    def correlation(self) -> float | None:
        """Rank correlation of evaluations and difficulty, see `correlate_ranks`."""
        return correlate_ranks(self.difficulty, self.evals)

    @property
    def enough(self) -> int:
        """The fewest evaluations in `at` from which on answers are as good as at the end."""
        least = max(self.at)
        for evals in sorted(self.at, reverse=True):
            if abs(self.at[evals] - self.figure) > LACKING * abs(self.figure):
                break
            least = evals
        return least

    def describe(self, metric: Metric) -> str:
        """Say in one sentence whether the model uses its depth."""
        end = metric.format(self.figure)
        best = max(self.figure, *self.at.values())
        share = metric.unit.strip() == "%"
        floor = NOTHING / metric.scale if share else 0.0
        lucky = share and self.figure < floor and best <= 1 / self.samples
        if metric.higher_is_better and (best < floor or best == 0 or lucky):
            found = f"{metric.format(best)} at best, {end} at the end of the solves"
            if self.converged < 0.5:
                return (
                    f"the model solves next to nothing ({found}), but {1 - self.converged:.0%} of "
                    f"the solves did not converge in {max(self.evals)} evaluations: raise "
                    "--max-evals before judging its depth"
                )
            return (
                f"the model solves next to nothing ({found}): train it further before judging its "
                "depth"
            )
        if self.enough <= FEW:
            word = "evaluation is" if self.enough == 1 else "evaluations are"
            return (
                f"{self.enough} {word} enough ({metric.format(self.at[self.enough])}; {end} at the "
                f"end of the solves): a network of fixed depth {self.enough} is cheaper"
            )
        early = self.at[FEW]
        if share:
            gain = f"{metric.scale * abs(self.figure - early):.0f} points"
        else:
            gain = (
                f"{abs(self.figure / early - 1):.0%} in {metric.label}" if early else metric.label
            )
        better = (self.figure > early) == metric.higher_is_better
        return (
            f"the model {'gains' if better else 'loses'} {gain} {'from' if better else 'by'} its "
            f"depth: {metric.format(early)} after {FEW} evaluations, {end} at the end of the "
            f"solves, and as much from {self.enough} evaluations on"
        )

    def json(self, metric: Metric) -> SplitDepth:
        """Return all figures, and the sentence about them, as JSON holds them."""
        derived = {"correlation": self.correlation, "enough": self.enough}
        return cast(SplitDepth, {**asdict(self), **derived, "sentence": self.describe(metric)})


@torch.no_grad()
def measure_depth(
    model: EquilibriumModel,
    task: Task,
    accelerator: Accelerator,
    *,
    split: str = "test",
    samples: int = 1000,
    batch_size: int = 250,
    seed: int = 0,
) -> DepthReport:
    """Return what a model's answers owe to its depth; the model is in evaluation mode meanwhile.

    Answers are read from the iterate, whatever its residual, after 1, 2, 3, 4, 6, 8, 12, ...
    evaluations. Then the solves start again: from zeros, from normal noise with the mean square of
    the solution, from noise ten times as large, from the negated solution, and from the solution of
    another sample of the batch; this one is left out for batches of one sample. If all of these
    lead to one answer, it belongs to the instance, and not to the path.

    Args:
        model: the model itself, on the accelerator's device; the samples of its layer are solved
            one by one.
        task: gives data and figures.
        accelerator: gives device and precision.
        split: one of the task's.
        samples: at most so many.
        batch_size: samples a batch.
        seed: of the noise.
    """
    metric, solver = task.primary, model.deq.eval_solver or model.deq.solver
    depths = choose_depths(solver.max_evals)
    tallies: dict[int | str, Tally] = defaultdict(Tally)
    solves: dict[str, list[Tensor]] = defaultdict(list)
    evals, status, difficulty = list[int](), list[int](), list[float]()
    right_after, right_evals = list[int](), list[int]()

    def judge(batch: Batch, prediction: Prediction) -> tuple[dict[str, Tensor], Tensor | None]:
        loss = loss_of(model, task, prediction, batch.targets, accelerator)
        sums = sums_of(model, task, prediction, batch.targets, loss)
        return sums, task.judge(prediction.output, batch.targets)

    with in_eval_mode(model), accelerator.autocast():
        parts = task.batches(split, min(batch_size, samples))
        for part in itertools.islice(parts, max(1, samples // batch_size)):
            batch = to_device(part, accelerator.device)
            final = model(batch.inputs, states=depths)
            ends = final.solution.stats.evals.tolist()
            sums, right = judge(batch, final)
            tallies["end"].add(sums)
            rights: list[Any] = []
            for depth, state in zip(depths, final.solution.states, strict=True):
                judged = sums, right  # no later state is another
                if depth <= max(ends):
                    output = model.answer(state, batch.inputs)
                    judged = judge(batch, final._replace(output=output))
                tallies[depth].add(judged[0])
                rights.append(judged[1])
            if right is not None:
                right_after += _find_settled(depths, ends, [*rights, right])
                right_evals += itertools.compress(ends, right.tolist())
            if (hard := task.measure_difficulty(batch)) is not None:
                difficulty += hard.tolist()
            rows = slice(len(evals), len(evals) + len(ends))
            with draws.key_rows(f"depth {seed}", rows):
                starts = _make_starts(final.solution.value, len(ends))
            evals += ends
            status += final.solution.status.tolist()
            for kind, start in starts.items():
                other = model(batch.inputs, z0=start)
                tallies[kind].add(judge(batch, other)[0])
                solves[kind].append(_compare(final, other))
    figures = {key: task.figures(each.sums, split)[metric.name] for key, each in tallies.items()}
    most = max(evals)
    # From the evaluation on at which the last of them ended, all states are the solutions.
    last = next((depth for depth in depths if depth >= most), "end")
    return DepthReport(
        split=split,
        samples=len(evals),
        metric=metric.name,
        figure=figures["end"],
        at={depth: figures[depth] for depth in depths if depth < most} | {most: figures[last]},
        evals=evals,
        converged=status.count(Status.CONVERGED) / len(status),
        starts={
            kind: StartFigures(figures[kind], *torch.cat(rows).mean(0).tolist())
            for kind, rows in solves.items()
        },
        right_after=right_after,
        right_evals=right_evals,
        difficulty=difficulty,
    )


def correlate_ranks(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None where one of both is constant."""
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def choose_depths(most: int) -> tuple[int, ...]:
    """Return 1, 2, 3, 4, 6, 8, 12, 16, ... and `most`, which is the last."""
    ladder = sorted({1, *(part << power for power in range(32) for part in (2, 3))})
    return (*itertools.takewhile(lambda each: each < most, ladder), most)


def _make_starts(z: Any, samples: int) -> dict[str, Any]:
    """Starts like the solutions `z`, by what they are."""
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "zeros": torch.zeros_like,
        "noise": draws.noise_like,
        "noise, ten times as large": lambda leaf: 10.0 * draws.noise_like(leaf),
        "the solution, negated": torch.neg,
    }
    if samples > 1:
        kinds[OTHER] = lambda leaf: leaf.roll(1, 0)
    return {kind: pytree.tree_map(make, z) for kind, make in kinds.items()}


def _compare(one: Prediction, other: Prediction) -> Tensor:
    """Evaluations, convergence and sameness of each sample, `(batch, 3)`."""
    solution = other.solution
    apart = (one.output - other.output).flatten(1).norm(dim=1)
    same = apart <= 0.01 * one.output.flatten(1).norm(dim=1)
    columns = (solution.stats.evals, solution.status == Status.CONVERGED, same)
    return torch.stack([each.double().cpu() for each in columns], 1)


def _find_settled(
    depths: Sequence[int], ends: Sequence[int], rights: Sequence[Tensor]
) -> list[int]:
    """The first of the depths after which each answer that ends right is right, and stays so; no
    later than where its solve ends."""
    *early, end = torch.stack([*rights]).cpu()
    lasting = torch.stack(early).flip(0).cumprod(0).sum(0)  # the last so many depths are right
    places = len(depths) - lasting
    return [
        min(depths[int(place)], last) if place < len(depths) else last
        for place, last, right in zip(places.tolist(), ends, end.tolist(), strict=True)
        if right
    ]
