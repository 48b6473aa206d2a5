"""The Neumann series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from equilibria.solve.linear.base import LinearSolver, Product
from equilibria.solve.loop import Run, iterate
from equilibria.solve.rows import Rows, length
from equilibria.solve.solvers.base import check_whole
from equilibria.solve.solvers.picard import Picard


@dataclass(frozen=True, kw_only=True)
class Neumann(LinearSolver):
    """u = sum_i A^i g, summed as u <- A u + g until the residual is small.

    The iteration of Bai 2022 (thesis), eq. 2.16 without acceleration. Converges where the spectral
    radius of A is below 1. History: none.

    Attributes:
        patience: a sample has stalled when its best residual fell by less than 1 % in this many
            products; None never gives up.
    """

    patience: int | None = 20
    budgets: ClassVar[bool] = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None:
            check_whole(self, "patience", 1)

    @override
    def solve(
        self,
        product: Product,
        g: Rows,
        start: Rows | None = None,
        *,
        rtol: Tensor | None = None,
        budget: Tensor | None = None,
        trust: bool = False,
    ) -> Run:
        if budget is not None:  # see `budgets`
            raise TypeError("the Neumann series cannot stop each sample after its own products")
        method = Picard(
            rtol=self.rtol, atol=self.atol, max_evals=self.max_evals, patience=self.patience
        )
        begin = g if start is None else start
        return iterate(method, affine(product, g), begin, rtol=rtol, origin=length(g))


def affine(product: Product, g: Rows):
    """u -> A u + g, for solvers that iterate a map."""

    def apply(u: Rows) -> Rows:
        return [a + b for a, b in zip(product(u), g, strict=True)]

    return apply
