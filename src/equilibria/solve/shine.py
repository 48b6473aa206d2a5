"""The adjoint that shares the forward solver's inverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.adjoints import Adjoint, JacobianFree, at_parameters
from equilibria.solve.broyden import Broyden
from equilibria.solve.derivative import Linearisation, pullback, pushforward
from equilibria.solve.equation import Equation
from equilibria.solve.function import Found
from equilibria.solve.options import check_at_least, check_whole
from equilibria.solve.problem import Problem
from equilibria.solve.rows import Rows, add_scaled, choose, norm
from equilibria.solve.tree import Leaves

Multiply = Callable[[Leaves], Leaves]


@dataclass(frozen=True, kw_only=True)
class Shine(Adjoint):
    """The shared inverse (SHINE): u = M dL/dz*, M = -B^T, with B from the forward solve.

    There B, Broyden's matrix, stands for the inverse Jacobian of f(z) - z, which is -(I - J)^-1.
    (The thesis prints the formula without the sign.) No vector-Jacobian product is taken, only two
    passes over the solver's history, which is kept until the backward pass: a vector of the size of
    z an evaluation. The error in u is (M - (I - J)^-T) dL/dz*: B knows J along the solver's path
    alone, so it is small where dL/dz* lies along it, and on the whole smaller than that of
    `JacobianFree`, at the same cost. On a GPU the forward solve waits for the device after each
    evaluation, so that B ends with each sample.

    Each step of `refine` takes one product and adds M times the residual that u leaves in the
    adjoint's equation: the error in u is then (I - M (I - J)^T)^refine times that above.

    Higher derivatives take B as a constant, as `JacobianFree` does the identity. Finished samples
    stay in the batch, whatever `drop_finished` says.

    Source: Bai 2022 (thesis), sec. 5.3.1; Ramzi et al. 2022, whose code has `fallback` too.

    Attributes:
        refine: steps of refinement, >= 0.
        fallback: a sample with ||M dL/dz*|| > `fallback` ||dL/dz*|| takes dL/dz* in its place,
            that is, the Jacobian-free gradient; None: never. For a spectral radius near 1 such
            growth may be right.

    Raises:
        TypeError: in a solve with gradients, by another solver than `Broyden`.
        ValueError: there, by a `Broyden` that restarts.
        RuntimeError: in differentiating under torch.vmap, where no matrix is kept.
    """

    refine: int = 0
    fallback: float | None = 1.8

    def __post_init__(self) -> None:
        check_whole(self, "refine", 0)
        if self.fallback is not None:
            check_at_least(self, "fallback", 0.0)

    @property
    @override
    def needs_inverse(self) -> bool:
        return True

    @override
    def find(self, equation: Problem, z: Leaves, p: Leaves) -> Found:
        wanted = torch.is_grad_enabled() or private.transform_active()
        if not (wanted or private.dual_level_active()):  # nobody will ask for the matrix
            return super().find(replace(equation, derivative=JacobianFree()), z, p)
        solver = equation.solver
        if not isinstance(solver, Broyden):
            raise TypeError(
                "Shine shares the matrix of a forward solve by Broyden, and the solver is "
                f"{solver!r}: use solver=eq.Broyden(), or another adjoint"
            )
        if solver.memory is not None:
            raise ValueError(
                f"Shine needs the whole matrix of the forward solve, and Broyden(memory="
                f"{solver.memory}) forgets at every restart: use Broyden(memory=None)"
            )
        return super().find(equation, z, p)

    @override
    def first_order(self, equation: Equation, jacobian: Linearisation, g: Leaves) -> Leaves:
        return self._refined(equation, g, jacobian.transposed, transposed=True)

    @override
    def cotangent(self, equation: Equation, z: Leaves, p: Leaves, g: Leaves) -> Leaves:
        at = at_parameters(equation, p)
        return self._refined(equation, g, lambda u: pullback(at, z, u), transposed=True)

    @override
    def tangent(self, equation: Equation, z: Leaves, p: Leaves, c: Leaves) -> Leaves:
        at = at_parameters(equation, p)
        multiply: Multiply = lambda t: pushforward(at, z, t, like=z)  # noqa: E731
        return self._refined(equation, c, multiply, transposed=False)

    def _refined(
        self, equation: Equation, g: Leaves, multiply: Multiply, *, transposed: bool
    ) -> Leaves:
        kept = None if equation.record is None else equation.record.inverse
        if kept is None:
            raise RuntimeError(
                "Shine found no matrix of the forward solve: it keeps none under torch.vmap. Use "
                "eq.Implicit() or eq.JacobianFree() there"
            )
        layout, inverse = kept
        apply = inverse.transposed if transposed else inverse.direct
        constant = layout.rows(g)
        u = self._bounded(apply, constant)
        for _ in range(self.refine):
            image = layout.rows(multiply(layout.leaves(u)))
            residual = [a + b - c for a, b, c in zip(image, constant, u, strict=True)]
            u = add_scaled(u, 1.0, apply(residual))
        return layout.leaves(u)

    def _bounded(self, apply: Callable[[Rows], Rows], g: Rows) -> Rows:
        """M g, and g itself where M g is out of all proportion."""
        found = apply(g)
        if self.fallback is None:
            return found
        return choose(norm(found) <= self.fallback * norm(g), found, g)
