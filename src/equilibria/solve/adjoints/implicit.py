"""The exact adjoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.adjoints.base import ImplicitAdjoint
from equilibria.solve.affine import Affine
from equilibria.solve.derivative import Linearisation
from equilibria.solve.equation import Equation, Record
from equilibria.solve.function import solve_implicitly
from equilibria.solve.linear import Fallback, LinearSolver
from equilibria.solve.options import check_at_least
from equilibria.solve.solvers import Solver
from equilibria.solve.tolerance import finest
from equilibria.solve.tree import Leaves

LOOSEST = 0.1
"""The loosest tolerance that an adjoint follows a poor forward solve to."""


@dataclass(frozen=True, kw_only=True)
class Implicit(ImplicitAdjoint):
    """The implicit function theorem: dL/dp = (df/dp)^T u, where u = J^T u + dL/dz*, J = df/dz.

    Exact, to any order of derivative, up to the tolerances: the error of the gradient is at most
    (adjoint tolerance + L x forward tolerance) / sigma_min(I - J), L a Lipschitz constant of the
    derivatives of f. Takes one evaluation of f in backward, and vector-Jacobian products until the
    linear solve is done. Memory: f's one evaluation and the linear solver's history.

    Source: Bai et al. 2019, Theorem 1; Bai 2022 (thesis), eq. 2.14 and 2.16.

    Attributes:
        linear: a linear solver; or a forward solver, which is then applied to the map
            u -> J^T u + g, as the papers do.
        follow: each sample's adjoint tolerance is `follow` times the relative residual that its
            forward solve reached, where that is looser than `linear.rtol`, and at most 0.1: with 1
            the two terms of the error are of one size up to L, and products that would only refine
            the smaller one are saved. None: `linear.rtol` alone.

    Under torch.vmap `follow` is not used: the same answer, to the tolerance of `linear`.
    """

    linear: LinearSolver | Solver = field(default_factory=Fallback)
    follow: float | None = None

    def __post_init__(self) -> None:
        given: Any = self.linear
        if not isinstance(given, LinearSolver | Solver):
            raise TypeError(
                "Implicit(linear=...): expected a linear or a forward solver, such as eq.GMRES() "
                f"or eq.Anderson(), got {given!r}"
            )
        if isinstance(given, Solver) and given.by_leaf:
            raise TypeError(
                f"Implicit(linear=...): expected one rtol and one atol, got rtol={given.rtol}, "
                f"atol={given.atol}: the backward solve measures the leaves of the state together"
            )
        if self.follow is not None:
            check_at_least(self, "follow", 0.0)

    @property
    def finest(self) -> float:
        """The backward solve's relative tolerance."""
        return finest(self.linear.rtol)

    def _affine(self, equation: Equation, count: int, transposed: bool) -> Affine:
        record = equation.record if transposed else None
        rtol = None if equation.record is None else self._rtol(equation.record, equation.floor)
        linear = self.linear.no_finer_than(equation.floor)
        return Affine(equation, linear, transposed, self, count, record, rtol)

    def _rtol(self, record: Record, floor: float) -> Tensor | None:
        """Each sample's tolerance, in place of the linear solver's."""
        if self.follow is None or record.residual is None:
            return None
        reached = self.follow * record.residual
        finest = max(self.finest, floor)
        return torch.clamp(reached, finest, max(finest, LOOSEST))

    @override
    def first_order(self, equation: Equation, jacobian: Linearisation, g: Leaves) -> Leaves:
        layout, run = self._affine(equation, len(g), True).solve_with(jacobian, g)
        return layout.leaves(run.value)

    @override
    def cotangent(self, equation: Equation, z: Leaves, p: Leaves, g: Leaves) -> Leaves:
        return solve_implicitly(self._affine(equation, len(g), True), g, [], [*z, *p, *g])[0]

    @override
    def tangent(self, equation: Equation, z: Leaves, p: Leaves, c: Leaves) -> Leaves:
        return solve_implicitly(self._affine(equation, len(c), False), c, [], [*z, *p, *c])[0]
