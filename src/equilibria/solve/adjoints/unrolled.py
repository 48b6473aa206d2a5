"""Differentiating the solver itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as _checkpoint
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.adjoints.base import Adjoint
from equilibria.solve.adjoints.neumann import JacobianFree
from equilibria.solve.equation import Derivative
from equilibria.solve.implicit import Found
from equilibria.solve.nonlinear import TRACE_UNDER_VMAP, Nonlinear
from equilibria.solve.rows import Layout, Rows
from equilibria.solve.tree import Leaves


@dataclass(frozen=True, kw_only=True)
class Unrolled(Adjoint):
    """Differentiates the solver's own iterations (backpropagation through time).

    The gradient is exact for the iterate that is returned, the last one, and the start z0 gets its
    gradient too. Memory grows with every evaluation; with `checkpoint`, by the iterates alone, and
    f is evaluated twice.

    Attributes:
        checkpoint: keep the iterates only and evaluate f again in backward.
    """

    checkpoint: bool = False

    def __post_init__(self) -> None:
        given: Any = self.checkpoint
        if not isinstance(given, bool):
            raise TypeError(f"Unrolled(checkpoint=...): expected a bool, got {given!r}")

    @property
    @override
    def derivative(self) -> Derivative:
        return JacobianFree()  # never asked for: autograd follows the steps

    @override
    def find(self, equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
        transformed = private.transform_active()
        if equation.trace and any(private.is_mapped(x) for x in [*z, *p]):
            raise RuntimeError(TRACE_UNDER_VMAP)
        if self.checkpoint and transformed:
            raise RuntimeError(
                "Unrolled(checkpoint=True) can't be used under torch.func: torch's checkpointing "
                "is not made for its transforms. Use Unrolled()"
            )
        layout = Layout.of(z, equation.coupled)
        module: Any = _checkpoint

        def once(*state: Tensor) -> tuple[Tensor, ...]:
            return tuple(equation.evaluate(list(state), p))

        def rows_of_f(rows: Rows) -> Rows:
            state = layout.leaves(rows)
            if self.checkpoint:
                return layout.rows(list(module.checkpoint(once, *state, use_reentrant=False)))
            return layout.rows(list(once(*state)))

        tracked = torch.is_grad_enabled() or transformed or private.dual_level_active()
        run = equation.search(rows_of_f, layout.rows(z), None, tracked=tracked, last=True)
        if equation.record is not None:
            equation.record.note(run, layout)
        return Found(
            value=layout.leaves(run.value),
            status=run.status,
            evals=run.evals,
            residual=run.residual.detach(),
            states=[layout.leaves(rows) for rows in run.states],
        )
