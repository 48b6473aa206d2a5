"""The equilibria on which a solver is trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.nn.deq import DEQ
from equilibria.nn.using import using
from equilibria.solve import Anderson, Shared, Solver, Status, Tolerance, Tree
from equilibria.words import percent

__all__ = ["Solved", "solve"]

USUAL = 1e-4
TEACHER = Anderson(rtol=USUAL, max_evals=100)
"""The default teacher."""

CLOSER = 10
"""Factor by which equilibria to learn from must be more accurate than the layer's own tolerance,
where `TEACHER` does not reach its own."""

LEAST = 0.5
"""Smallest fraction of samples that must have an equilibrium."""


@dataclass(frozen=True)
class Solved:
    """A batch and its equilibria.

    Attributes:
        inputs: of the layer.
        own: the layer's own initial state.
        value: z*.
        kept: `(batch,)` bool, the samples for which the classical solver converged.
    """

    inputs: tuple[Any, ...]
    own: Tree
    value: Tree
    kept: Tensor

    def teaching(self) -> Solved:
        """Return the samples that are kept. Masking the loss would not do: for a diverged sample, a
        zero gradient becomes NaN when it is backpropagated through values that overflowed."""
        if bool(self.kept.all()):
            return self
        inputs = tuple(x if isinstance(x, Shared) else self._of(x) for x in self.inputs)
        kept = self.kept[self.kept]
        return Solved(inputs, self._of(self.own), self._of(self.value), kept)

    def _of(self, tree: Tree) -> Tree:
        return pytree.tree_map_only(Tensor, lambda x: x[self.kept], tree)


def solve(layer: DEQ, batches: Iterable[Sequence[Any]], teacher: Solver | None) -> list[Solved]:
    """Return batches of a layer's inputs with the equilibria that a classical solver finds.

    Args:
        layer: in eval mode.
        batches: tuples of the layer's inputs.
        teacher: the solver; None for the default, see `Distillation`.

    Raises:
        TypeError: a batch is a tensor and not a tuple of the layer's inputs.
        ValueError: there are no batches, or fewer than half of all samples converge.

    Warns:
        UserWarning: the default teacher converges for fewer than half of the samples, but for at
            least half at a tenth of the layer's own tolerance.
    """
    several = [_tuple(each) for each in batches]
    if not several:
        raise ValueError("there are no batches to learn a solver from")
    by = TEACHER if teacher is None else teacher
    found = _solved(layer, several, by)
    looser = replace(TEACHER, rtol=_closer((layer.eval_solver or layer.solver).rtol))
    if teacher is None and _share(found) < LEAST and looser != TEACHER:
        again = _solved(layer, several, looser)
        if _share(again) >= LEAST:
            warnings.warn(
                f"{percent(_share(found))} of the samples converge to {TEACHER.rtol} within "
                f"{TEACHER.max_evals} evaluations, {percent(_share(again))} to {looser.rtol}, a "
                "tenth of the layer's own tolerance: equilibria at that tolerance are used",
                stacklevel=2,
            )
        by, found = looser, again
    if _share(found) < LEAST:
        kept, total = _kept(found)
        raise ValueError(
            f"only {kept} of {total} samples have an equilibrium to learn from: {by} did not "
            "converge for the others. Try another teacher, more evaluations or a larger tolerance"
        )
    return found


def _closer(tolerance: Tolerance) -> Tolerance:
    """A tenth of a layer's tolerance, but not below the default teacher's."""
    if isinstance(tolerance, dict):
        return {name: max(each / CLOSER, USUAL) for name, each in tolerance.items()}
    if isinstance(tolerance, tuple):
        return tuple(max(each / CLOSER, USUAL) for each in tolerance)
    return max(tolerance / CLOSER, USUAL)


def _tuple(batch: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(batch, Tensor):
        raise TypeError(
            "a batch is a tuple of the layer's inputs, but this is a tensor of shape "
            f"{tuple(batch.shape)}: pass (x,) instead of x"
        )
    # Their autograd graph would be kept alive throughout training.
    return pytree.tree_map_only(Tensor, Tensor.detach, tuple(batch))


@torch.no_grad()
def _solved(layer: DEQ, batches: Sequence[tuple[Any, ...]], teacher: Solver) -> list[Solved]:
    found: list[Solved] = []
    with using(layer, eval_solver=teacher):
        for inputs in batches:
            sol = layer(*inputs)
            start = layer.start(*inputs)
            found.append(Solved(inputs, start, sol.value, sol.status == Status.CONVERGED))
    return found


def _kept(found: Sequence[Solved]) -> tuple[int, int]:
    """Return the number of samples with an equilibrium, and the total."""
    return sum(int(each.kept.sum()) for each in found), sum(len(each.kept) for each in found)


def _share(found: Sequence[Solved]) -> float:
    kept, total = _kept(found)
    return kept / total
