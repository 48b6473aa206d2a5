"""The exact adjoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from equilibria.solve.adjoints.base import ImplicitAdjoint
from equilibria.solve.affine import Affine
from equilibria.solve.derivative import Linearisation
from equilibria.solve.equation import Equation
from equilibria.solve.function import solve_implicitly
from equilibria.solve.linear import GMRES, LinearSolver
from equilibria.solve.solvers import Solver
from equilibria.solve.tree import Leaves


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
    """

    linear: LinearSolver | Solver = field(default_factory=GMRES)

    def __post_init__(self) -> None:
        given: Any = self.linear
        if not isinstance(given, LinearSolver | Solver):
            raise TypeError(
                "Implicit(linear=...): expected a linear or a forward solver, such as eq.GMRES() "
                f"or eq.Anderson(), got {given!r}"
            )

    def _affine(self, equation: Equation, count: int, transposed: bool) -> Affine:
        record = equation.record if transposed else None
        return Affine(equation, self.linear, transposed, self, count, record)

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
