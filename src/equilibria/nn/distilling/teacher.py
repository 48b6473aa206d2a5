"""The equilibria that a solver learns from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.nn.deq import DEQ
from equilibria.nn.using import using
from equilibria.solve import Solver, Status
from equilibria.solve.tree import Shared, Tree

__all__ = ["Solved", "solve"]


@dataclass(frozen=True)
class Solved:
    """A batch and its equilibria.

    Attributes:
        inputs: of the layer.
        own: the layer's own start.
        value: z*.
        kept: `(batch,)` bool, the samples of which the classical solver has converged.
    """

    inputs: tuple[Any, ...]
    own: Tree
    value: Tree
    kept: Tensor

    def lesson(self) -> Solved | None:
        """Return the samples that have a z*, alone; None where none has.

        An unrolled solve of another one may overflow, and then the loss of all has no gradient.
        """
        if self.kept.all():
            return self
        index = self.kept.nonzero().flatten()
        if not len(index):
            return None

        def of(tree: Tree) -> Tree:
            return pytree.tree_map_only(Tensor, lambda x: x.index_select(0, index), tree)

        inputs = tuple(x if isinstance(x, Shared) else of(x) for x in self.inputs)
        return Solved(inputs, of(self.own), of(self.value), self.kept.index_select(0, index))


def solve(layer: DEQ, batches: Iterable[Sequence[Any]], teacher: Solver) -> list[Solved]:
    """Return batches of a layer's inputs with the equilibria that a classical solver finds.

    Args:
        layer: in eval mode.
        batches: tuples of the layer's inputs.
        teacher: the solver.

    Raises:
        ValueError: there are no batches, or fewer than half of all samples converge.
    """
    found: list[Solved] = []
    with torch.no_grad(), using(layer, eval_solver=teacher):
        for each in batches:
            # A graph behind them would be held for as long as they are learned from.
            inputs = pytree.tree_map_only(Tensor, Tensor.detach, tuple(each))
            sol = layer(*inputs)
            found.append(
                Solved(inputs, layer.start(*inputs), sol.value, sol.status == Status.CONVERGED)
            )
    total = sum(len(each.kept) for each in found)
    if not total:
        raise ValueError("there are no batches to learn a solver from")
    kept = sum(int(each.kept.sum()) for each in found)
    if 2 * kept < total:
        raise ValueError(
            f"only {kept} of {total} samples have an equilibrium to learn from: {teacher} did not "
            "converge for the others. Try another teacher, more evaluations or a larger tolerance"
        )
    return found
