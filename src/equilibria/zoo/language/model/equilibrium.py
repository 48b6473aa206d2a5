"""Sequence models at the equilibrium of their cell, solved whole or in subsequences."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import override

from equilibria.nn import DEQ
from equilibria.run.models.base import EquilibriumModel, Prediction
from equilibria.solve import Solution
from equilibria.zoo.language.model.cell import CellConfig, SequenceCell
from equilibria.zoo.language.model.injected import InjectedModel

__all__ = ["EquilibriumSequence"]


class EquilibriumSequence(InjectedModel, EquilibriumModel):
    """z* = f(z*; u, memory) for all times of a segment at once, with u injected from the tokens.

    The softmax reads z*; the memory of the next segment is z* too, without a gradient.

    With subsequences, a segment is solved piece by piece, each with the equilibria of the pieces
    before it in its memory. The cell being causal, the pieces' equilibria are together that of the
    whole; and since gradients flow through the memory from piece to piece, so are the gradients: a
    block-triangular system solved by its blocks, forward and backward, exact in the limit of the
    tolerance. In training each piece has dropout masks of its own.

    Args:
        config: of the cell and the vocabulary.
        subsequence: times that are solved together; None for all of a segment.
        **layer: keywords of the `DEQ` layer.

    Source:
        Bai et al. 2019, sec. 3 and 4; subsequences: appendix E, eq. 22.
    """

    def __init__(self, config: CellConfig, subsequence: int | None = None, **layer: Any) -> None:
        cell = config.cell()
        super().__init__(config, cell.features)
        self.subsequence = subsequence
        self.deq = DEQ(cell, init=cell.start, **layer)

    @property
    @override
    def the_cell(self) -> SequenceCell:
        assert isinstance(self.deq.cell, SequenceCell)
        return self.deq.cell

    @override
    def first_piece(self, x: Tensor) -> Tensor:
        return x if self.subsequence is None else x[:, : self.subsequence]

    @override
    def forward(
        self,
        x: Tensor,
        *,
        carry: Any = None,
        z0: Any = None,
        warm: Solution | None = None,
        states: Sequence[int] = (),
        trace: bool = False,
    ) -> Prediction:
        """Solve for the equilibrium of a segment and return the features read from it.

        Args:
            x: tokens (batch, time).
            carry: of the prediction on the segment before; None at a beginning.
            z0: start of the solve, of all times; None for zeros.
            warm: an earlier solution to start from, where the segment is solved in one piece.
            states: evaluations after which an iterate is kept, in the `states` of each solution.
            trace: keep the residual after each evaluation, in the `stats.trace` of each solution.

        Returns:
            The prediction, with one solution for each piece.

        Raises:
            ValueError: the carry is of another batch; there is `warm` and more than one piece.
        """
        u, memory, history = self.injected(x, carry)
        time = x.shape[1]
        size = self.subsequence or time
        if warm is not None and size < time:
            raise ValueError(
                f"warm is one solution, and {time} times are solved in pieces of {size}: give z0, "
                "the start of all times"
            )
        solutions: list[Solution] = []
        for begin in range(0, time, size):
            times = slice(begin, min(begin + size, time))
            piece = u[:, times]
            start = None if z0 is None else pytree.tree_map(lambda x, at=times: x[:, at], z0)
            solution = self.deq(
                *self.the_cell.inject(piece, memory),
                z0=start,
                warm=warm,
                states=states,
                trace=trace,
            )
            solutions.append(solution)
            memory = self.the_cell.remember(solution.value, piece, memory)
        z = pytree.tree_map(lambda *leaves: torch.cat(leaves, 1), *[s.value for s in solutions])
        return Prediction(self.readout(z), tuple(solutions), self.carried(memory, history))
