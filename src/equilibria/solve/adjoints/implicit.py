"""The exact adjoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from typing_extensions import override

from equilibria.solve.adjoints.base import ImplicitAdjoint
from equilibria.solve.adjoints.shine import Shine, with_inverse
from equilibria.solve.affine import Affine, Map, Options
from equilibria.solve.derivative import Linearisation
from equilibria.solve.equation import Equation, Record
from equilibria.solve.function import solve_implicitly
from equilibria.solve.implicit import Found
from equilibria.solve.linear import LinearSolver, Relay
from equilibria.solve.nonlinear import Nonlinear
from equilibria.solve.rows import Rows
from equilibria.solve.solvers import Solver
from equilibria.solve.solvers.base import check_at_least
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

    Source: Bai et al. 2019, Theorem 1; Bai 2022 (thesis), eq. 2.14 and 2.16. With Broyden's matrix:
    Ramzi et al. 2022.

    Attributes:
        linear: a linear solver; or a forward solver, which is then applied to the map
            u -> J^T u + g, as the papers do.
        follow: each sample's adjoint tolerance is `follow` times the relative residual that its
            forward solve reached, where that is looser than `linear.rtol`, and at most 0.1: with 1
            the two terms of the error are of one size up to L, and products that would only refine
            the smaller one are saved. None: `linear.rtol` alone.
        guess: start from what `Shine` would return; not where an earlier solution gives a start.
        preconditioner: search for u along M = -B^T, B the matrix of the forward solve by `Broyden`.
            Where the spectral radius is near 1 and J is not symmetric it can save products;
            elsewhere it saves little, or costs a few.

    With a guess or a preconditioner finished samples stay in the batch. Under torch.vmap `follow`,
    `guess` and `preconditioner` are not used: the same answer, to the tolerance of `linear`.
    """

    linear: LinearSolver | Solver = field(default_factory=Relay)
    follow: float | None = None
    guess: Shine | None = None
    preconditioner: Shine | None = None

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
        for name in ("guess", "preconditioner"):
            shared: Any = getattr(self, name)
            if shared is not None and not isinstance(shared, Shine):
                raise TypeError(
                    f"Implicit({name}=...): expected eq.Shine() or None, got {shared!r}"
                )
        if self.preconditioner is not None and not isinstance(given, LinearSolver):
            raise TypeError(
                "Implicit(preconditioner=...) needs a linear solver, such as eq.GMRES(); "
                f"linear is {given!r}"
            )

    @property
    @override
    def needs_inverse(self) -> bool:
        return self.guess is not None or self.preconditioner is not None

    @property
    def finest(self) -> float:
        """The backward solve's relative tolerance."""
        return finest(self.linear.rtol)

    @override
    def find(self, equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
        if self.needs_inverse:
            equation = with_inverse("Implicit with Shine", equation)
        return super().find(equation, z, p)

    def _affine(self, equation: Equation, count: int, transposed: bool) -> Affine:
        record = equation.record
        return Affine(
            equation,
            self.linear,
            transposed,
            self,
            count,
            record if transposed else None,
            Options() if record is None else self._options(equation, record, transposed),
        )

    def _options(self, equation: Equation, record: Record, transposed: bool) -> Options:
        rtol = None
        if self.follow is not None and record.residual is not None:
            reached = self.follow * record.residual
            rtol = torch.clamp(reached, self.finest, max(self.finest, LOOSEST))
        if record.inverse is None:
            return Options(rtol)
        layout, inverse = record.inverse
        apply = inverse.transposed if transposed else inverse.direct
        guess: Map | None = None
        preconditioner: Callable[[Rows], Map] | None = None
        if self.guess is not None:
            guess = partial(self.guess.bounded, apply)
        if self.preconditioner is not None:
            preconditioner = partial(self.preconditioner.matrix, apply)
        return Options(rtol, guess, preconditioner, layout)

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
