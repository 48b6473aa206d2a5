"""What a solve returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from equilibria.solve.equation import AdjointInfo, Record
from equilibria.solve.status import Stats
from equilibria.solve.tree import Leaves, Tree


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A fixed point, how the solve ended and what it cost.

    Attributes:
        value: z*, the same tree as z0, connected to autograd: the best iterate that was evaluated
            (under `Phantom` the iterate after its steps, under `Unrolled` the last one).
        status: `(batch,)` int8, a `Status` code for each sample.
        stats: evaluations and residuals of each sample.
        states: for every number in `states`, the iterate after that many evaluations (the final
            value once a sample has finished). It carries the gradient of one step of f, for losses
            along the path.
    """

    value: Tree
    status: Tensor
    stats: Stats
    states: tuple[Tree, ...] = ()
    _record: Record = field(default_factory=Record, repr=False)
    # f at a state, leaf by leaf, with the operands and closed-over tensors of this solve; None
    # where it was solved without gradients.
    _evaluate: Callable[[Leaves], Leaves] | None = field(default=None, repr=False)

    @property
    def adjoint(self) -> AdjointInfo | None:
        """Status and stats of the latest first-order backward solve; None before one.

        None too for adjoints that solve nothing (`Phantom`, `JacobianFree`, ...) and under vmap.
        """
        return self._record.latest
