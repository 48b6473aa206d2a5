"""Differentiating the solver itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import checkpoint as _checkpoint
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.adjoints import Adjoint, JacobianFree
from equilibria.solve.boundary import boundary
from equilibria.solve.equation import Derivative
from equilibria.solve.function import Found
from equilibria.solve.problem import TRACE_UNDER_VMAP, Problem
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

    follows_path: ClassVar[bool] = True
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
    def find(self, equation: Problem, z: Leaves, p: Leaves) -> Found:
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

        def rows_of_f(rows: Rows) -> Rows:
            state = layout.leaves(rows)
            if self.checkpoint:
                once = _Checkpointed(equation, p)
                return layout.rows(list(module.checkpoint(once, *state, use_reentrant=False)))
            return layout.rows(equation.evaluate(state, p))

        tracked = torch.is_grad_enabled() or transformed or private.dual_level_active()
        with equation.noting_precision():
            first = rows_of_f(layout.rows(z))
        layout = layout.in_units_of(z, layout.leaves(first))
        start = layout.rows(z)
        if layout.unit is not None:
            first = [row / layout.unit for row in first]
        run = equation.search(rows_of_f, start, first, tracked=tracked, last=True, layout=layout)
        if equation.record is not None:
            equation.record.note(run, layout)
        return Found(
            # The caller may change it in place, and f may have returned a tensor of its own.
            value=[x.clone() for x in layout.leaves(run.value)],
            status=run.status,
            reason=run.reason,
            evals=run.evals,
            residual=run.residual.detach(),
            states=[layout.leaves(rows) for rows in run.states],
        )


class _Checkpointed:
    """One evaluation of f, which backward repeats: it must then be the same function."""

    def __init__(self, equation: Problem, p: Leaves) -> None:
        self.equation = equation
        self.p = p
        self.residual: Tensor | None = None

    @boundary
    def __call__(self, *state: Tensor) -> tuple[Tensor, ...]:
        function: Any = _Watched
        value = self.equation.evaluate(list(state), self.p)
        return function.apply(self, state, *value)

    def watch(self, z: Leaves, value: Leaves) -> None:
        if self.residual is None:
            self.residual = self.equation.relative_residual(z, value)
        else:
            self.equation.require_same(z, value, self.residual)


class _Watched(torch.autograd.Function):
    """f(z), looked at. It saves a tensor, though an empty one, for a checkpoint stops its second
    evaluation where the last saved tensor is found again."""

    @staticmethod
    def forward(owner: _Checkpointed, z: tuple[Tensor, ...], *value: Tensor) -> tuple[Tensor, ...]:
        owner.watch(list(z), list(value))
        return tuple(x.view_as(x) for x in value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(output[0].new_empty(0))

    @staticmethod
    @boundary
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        assert ctx.saved_tensors  # which makes the checkpoint evaluate again
        return (None, None, *grads)

    @staticmethod
    def jvp(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, owner: None, z: None, *tangents: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tangents)
