"""Several starts for each sample, of whose equilibria one is kept.

A strong map has several fixed points, or one that few starts reach. All starts are rows of one
batch. The answer that is chosen for a sample is what `FixedPoint` connects to autograd, as if it
had been found from its start alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import override

from equilibria import draws
from equilibria.solve.adjoints import Adjoint
from equilibria.solve.equation import Axes
from equilibria.solve.layout import Layout
from equilibria.solve.loop import Run
from equilibria.solve.options import CHECK, Options, instance_field, whole_field
from equilibria.solve.path import Phantom
from equilibria.solve.problem import Problem
from equilibria.solve.solution import StartOutcomes
from equilibria.solve.status import Status, raise_if_failed
from equilibria.solve.tree import Leaves, Tree, flatten, unflatten
from equilibria.words import is_out_of_memory

PRODUCTS = 20
"""Products with the Jacobian from which its growth rate is estimated."""


def _check_select(name: str, given: object) -> None:
    if not callable(given) and given not in ("residual", "first", "stability"):
        known = '"residual", "first", "stability" or a function of StartOutcomes'
        raise ValueError(f"{name}: expected {known}, got {given!r}")


@dataclass(frozen=True, kw_only=True)
class Starts(Options):
    """Several starts for each sample, and which of their equilibria to keep.

    Attributes:
        count: starts of each sample, z0 among them as the first; >= 1.
        draw: z0 -> a further start, a tree of tensors like z0. Each solve calls it `count` - 1
            times (under torch.vmap with the samples of all mapped elements in one z0). None:
            Gaussian noise about zero, whose RMS in each leaf of a sample is that of f(z0), or 1 if
            f(z0) is zero. In training the noise belongs to the sample, as dropout masks do.
        select: which start is chosen for a sample.
            "residual": of those that converged the one with the smallest residual.
            "first": the first that converged.
            "stability": the one that converged and whose perturbations grow least, by the largest
            absolute eigenvalue of df/dz at the solution. It is estimated by 20 products with df/dz
            at all starts, which `stats.evals` leaves out.
            A function: `StartOutcomes` -> scores `(count, batch)`, of which the lowest finite one
            wins. It is called without gradients.
            Where no start has converged, or has a finite score, the smallest residual decides.

    Example:
        >>> given = iter(others)  # three trees like z0
        >>> eq.fixed_point(f, z0, x, starts=eq.Starts(count=4, draw=lambda z0: next(given)))
    """

    count: int = whole_field(4, 1)
    draw: Callable[[Tree], Tree] | None = instance_field(None, Callable, "a function of z0")
    select: str | Callable[[StartOutcomes], Tensor] = field(
        default="residual", metadata={CHECK: _check_select}
    )


@dataclass(kw_only=True)
class Search(Problem):
    """A problem that is solved from several starts.

    Attributes:
        spec: the structure of the caller's state, under torch.vmap too.
    """

    starts: Starts
    spec: pytree.TreeSpec

    @classmethod
    def of(cls, problem: Problem, starts: Any, adjoint: Adjoint, warm: Any, z: Leaves) -> Search:
        """The problem, from z and further starts.

        Args:
            starts: a number of them, or `Starts`.
            adjoint: that of the solution.

        Raises:
            TypeError, ValueError: `starts` is of another kind; another option excludes it.
        """
        if not isinstance(starts, int | Starts):
            raise TypeError(f"starts: expected a number or eq.Starts(...), got {starts!r}")
        given = {
            "warm": (warm is not None, "pass its value as z0, the first start"),
            "states": (problem.states, "solve again from the start that was chosen"),
            "trace": (problem.trace, "solve again from the start that was chosen"),
            "coupled": (problem.coupled is not False, "solve from one start after another"),
        }
        for option, (used, remedy) in given.items():
            if used:
                raise ValueError(f"starts and {option} exclude each other: {remedy}")
        if adjoint.needs_inverse or (adjoint.follows_path and not isinstance(adjoint, Phantom)):
            raise TypeError(
                f"starts cannot be used with {adjoint!r}, which needs the path of a single solve: "
                "use eq.Implicit(), eq.JacobianFree(), eq.NeumannPhantom() or eq.Phantom()"
            )
        starts = starts if isinstance(starts, Starts) else Starts(count=starts)
        if problem.record is not None and not z[0].numel():  # an empty batch is not solved
            none = z[0].new_zeros(0)
            ended = none.to(torch.int8), none.long(), none, none
            problem.record.starts = _describe(starts.count, z, problem.state_spec, *ended)
        own = {each.name: getattr(problem, each.name) for each in fields(problem)}
        return cls(**own, starts=starts, spec=problem.state_spec)

    @override
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        first = first or [x.detach() for x in self.evaluate_first(z, p)[0]]
        count, batch = self.starts.count, z[0].shape[0]
        states = [z, *[self._draw(z, first) for _ in range(count - 1)]]
        every = [torch.cat(leaves) for leaves in zip(*states, strict=True)]
        whole, every, p = self._repeat(every, p)
        if count > 1:
            first = self._evaluate_all(whole, every, first, p)
        layout, run = Problem.solve(whole, every, first, p)
        assert run.size is not None
        size = run.size if layout.unit is None else run.size * layout.unit.squeeze(1)
        size = size / math.sqrt(sum(row.shape[1] for row in run.value))
        leaves, ended = layout.leaves(run.value), (run.status, run.evals, run.residual, size)
        outcomes = _describe(count, leaves, self.spec, *ended)
        if count > 1 and self.starts.select != "residual":
            outcomes = replace(outcomes, chosen=self._choose(outcomes, whole, leaves, p))
        index = outcomes.chosen * batch + torch.arange(batch, device=outcomes.chosen.device)
        more = int(count > 1)  # the evaluation at z0 alone
        spent = {name: _by_start(x, count).sum(0) for name, x in run.extras.items()}
        run = replace(
            run,
            value=[row.index_select(0, index) for row in run.value],
            status=run.status[index],
            reason=run.reason[index],
            evals=outcomes.evals.sum(0) + more,
            residual=run.residual[index],
            extras={name: torch.cat([x[:, :1] + more, x[:, 1:]], 1) for name, x in spent.items()},
            size=run.size[index],
            course=None if run.course is None else run.course[index],
        )
        layout = layout.select(index)
        if self.record is not None:
            self.record.note(run, layout)
            self.record.starts = outcomes
        if self.throw:
            raise_if_failed(self.f.caller, run.status, run.reason, run.residual)
        return layout, run

    def _draw(self, z: Leaves, first: Leaves) -> Leaves:
        """A further start."""
        if self.starts.draw is None:
            return [draws.noise_like(x) for x in first]
        try:
            drawn, spec = flatten(self.starts.draw(unflatten([x.clone() for x in z], self.spec)))
        except StopIteration as error:
            raise ValueError(
                f"Starts(draw=...) has run out of starts: each solve takes {self.starts.count - 1}"
            ) from error
        found = [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x for x in drawn]
        wanted = [(tuple(x.shape), x.dtype) for x in z]
        if spec != self.spec or found != wanted:
            raise ValueError(
                f"Starts(draw=...) returned {found} where z0 is {wanted}: expected tensors like "
                "those of z0, in the same tree"
            )
        return [x.detach().to(z[0].device) for x in drawn]

    def _repeat(self, z: Leaves, p: Leaves) -> tuple[Problem, Leaves, Leaves]:
        """The problem of all starts, one batch after the other; its state and parameters."""
        whole, count = replace(self, record=None, throw=False), self.starts.count
        if self.record is None:  # under vmap, which knows the operands that it maps
            axes = Axes([0] * len(z), [], [None] * len(p))
            z = [_by_start(x, count) for x in z]
            mapped, z, _, p = Problem.fold_axis(whole, count, z, [], p, axes)
            return cast(Problem, mapped), z, p
        operands = len(self.operands.per_batch)
        pairs = zip(p, self.operands.per_batch, strict=False)
        return whole, z, [*(torch.cat([x] * count) if y else x for x, y in pairs), *p[operands:]]

    def _choose(self, found: StartOutcomes, whole: Problem, z: Leaves, p: Leaves) -> Tensor:
        """The start with the lowest finite score, `(batch,)`; by residual where there is none."""
        select, wanted = self.starts.select, tuple(found.status.shape)
        scores: Any
        if callable(select):
            scores = select(found)
            got = tuple(scores.shape) if isinstance(scores, Tensor) else scores
            if got != wanted:
                raise ValueError(f"Starts(select=...) returned {got}: expected scores {wanted}")
        elif select == "first":
            scores = torch.arange(wanted[0], device=found.chosen.device)[:, None].expand(wanted)
        else:
            with torch.inference_mode(False), whole.f.enter_evaluation():
                rates = whole.linearize_state(z, p).growth_rate(PRODUCTS)
            scores = rates.reshape(wanted)
        usable = torch.isfinite(scores) & (found.solved | callable(select))
        best = torch.where(usable, scores, torch.inf).argmin(0)
        return torch.where(usable.any(0), best, found.chosen)

    def _evaluate_all(self, whole: Problem, z: Leaves, first: Leaves, p: Leaves) -> Leaves:
        """f at all starts; at the first it must be `first`, as in a batch of its own."""
        count, batch = self.starts.count, first[0].shape[0]
        what = (
            f"{self.letter} is evaluated on {count * batch} rows, {count} starts of {batch} samples"
        )
        remedy = "Pass what has a batch axis as an operand, or leave starts out"
        try:
            image = [x.detach() for x in whole.evaluate(z, p)]
        except (IndexError, RuntimeError, ValueError) as error:
            own = type(error) not in (IndexError, RuntimeError, ValueError)
            if own or is_out_of_memory(error):
                raise
            raise ValueError(
                f"{what}, and failed, though not on the {batch} samples alone. Does it close over "
                f"a tensor with a batch axis? {remedy}"
            ) from error
        # Of the median sample, since one whose f(z0) is nearly cancelled consists of rounding.
        gap = self.measure(first, [x[:batch] for x in image]).relative.nanmedian()
        if float(gap) > self._bound_rounding(first[0]):
            raise ValueError(
                f"{what}, and its values at z0 are others than on the {batch} samples alone "
                f"(relative difference {float(gap):.1e}). Does it mix samples, close over a tensor "
                f"with a batch axis, or draw random numbers? {remedy}"
            )
        return image


def _by_start(x: Tensor, count: int) -> Tensor:
    """`(count * batch, ...)` -> `(count, batch, ...)`."""
    return x.reshape(count, len(x) // count, *x.shape[1:])


def _describe(count: int, z: Leaves, spec: pytree.TreeSpec, *ended: Tensor) -> StartOutcomes:
    """The outcomes of all starts; the smallest residual decides which is chosen.

    Args:
        ended: status, evaluations, residuals, and the RMS size of f at the starts, of each row.
    """
    status, evals, residual, size = (_by_start(x, count) for x in ended)
    zero = 4 * torch.finfo(size.dtype).eps ** 1.5 * size  # see `Reference.zero`
    solved = status == int(Status.CONVERGED)
    order = residual.nan_to_num(torch.inf, torch.inf)
    return StartOutcomes(
        value=unflatten([_by_start(x, count) for x in z], spec),
        status=status,
        residual=residual,
        evals=evals,
        chosen=torch.where(solved | ~solved.any(0), order, torch.inf).argmin(0),
        zero=zero.nan_to_num(0.0, 0.0).amax(0),
    )
