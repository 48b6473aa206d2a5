"""How the gradient of a fixed point is found: exactly, by truncated series, by a shared inverse.

The exact one has a linear solver of its own, `Fallback`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.auto import Auto
from equilibria.solve.broyden import Broyden
from equilibria.solve.equation import Affine, LinearSystem
from equilibria.solve.estimate import estimate_error
from equilibria.solve.function import solve_and_attach, solve_implicitly
from equilibria.solve.gmres import GMRES
from equilibria.solve.linear import Goal, LinearSolver, Measured, iterate_affine, linear_field
from equilibria.solve.loop import Run
from equilibria.solve.options import (
    Options,
    damping_field,
    finest,
    instance_field,
    is_foreign,
    nonnegative_field,
    refuse_ignored,
    whole_field,
)
from equilibria.solve.problem import Problem
from equilibria.solve.rows import Rows, add_scaled, check_like, choose, length
from equilibria.solve.solution import Record
from equilibria.solve.solvers import Product, Solver
from equilibria.solve.status import Status
from equilibria.solve.tree import Leaves


@dataclass(frozen=True, kw_only=True)
class Adjoint(Options):
    """How the gradient of a fixed point is found. The base of all adjoints.

    A custom adjoint overrides `solve`, which is used for derivatives of all orders, forward and
    backward. There are two other hooks, for an adjoint that does more than solve a linear system:
    `find` solves the problem and connects the solution, and `propagate` finds u from the equation.

    Class attributes:
        follows_path: autograd follows steps of the solver, or after it; `solve` has no part.
        fixed_steps: it takes a fixed number of steps, for states that may be short of a solution.
        needs_inverse: it needs (I - J)^-1 as the forward solver has learned it, in the record.
    """

    follows_path: ClassVar[bool] = False
    fixed_steps: ClassVar[bool] = False
    needs_inverse: ClassVar[bool] = False

    def solve(self, product: Product, g: Leaves) -> Leaves:
        """Return u = (I - A)^-1 g, or what stands for it, from products A v alone.

        Args:
            product: v -> A v, for v like g. A is the transposed Jacobian of f at z*, or the
                Jacobian; a call costs about one evaluation of f.
            g: the right side, the gradient dL/dz* in a backward pass: a tensor `(batch, ...)` for
                each leaf of the state.

        Returns:
            Tensors like g, by operations that autograd can follow.
        """
        del product, g
        raise NotImplementedError(f"{type(self).__name__} has no method solve(product, g)")

    @property
    def now(self) -> Adjoint:
        """The adjoint in use, of one that changes in training."""
        return self

    @property
    def levels(self) -> tuple[Adjoint, ...]:
        """All that it may become."""
        return (self,)

    def find(self, problem: Problem, z: Leaves, p: Leaves) -> Run:
        """Solves from `z` at the operands `p`, and connects the solution to what f depends on."""
        return solve_and_attach(problem, [leaf.detach() for leaf in z], p)

    def propagate(self, system: LinearSystem, g: Leaves) -> Leaves:
        """u = (I - J)^-T g, or (I - J)^-1 g, or what stands for it."""
        u = self.solve(system.product, g)
        if is_foreign(self):
            check_like(f"{type(self).__name__}.solve", u, g, "as g")
        return u


def _first() -> Solver:
    return Auto(patience=10)


def _estimate(run: Run) -> Tensor:
    assert run.course is not None
    return estimate_error(run.course, run.residual)


def _then() -> LinearSolver:
    return GMRES(restart=50)  # what is left of the usual budget, without a restart


@dataclass(frozen=True, kw_only=True)
class Fallback(LinearSolver):
    """`first` on the map u -> A u + g; then `then`, from where a sample stands that did not arrive.

    `Auto` takes about as many products as GMRES where the spectral radius of A is below 1, or one
    fewer, since it has measured the residual of what it returns. GMRES also solves what it cannot.

    History: that of `first`, then that of `then`.

    Attributes:
        first: a forward solver, with half of `max_evals`. Its tolerances are those of the whole.
            Where a caller limits products sample by sample (`NewtonKrylov`) it has no part, and
            `then` does all.
        then: a linear solver, with what is left. Its tolerances are those of the whole.
    """

    first: Solver = instance_field(_first, Solver, "a forward solver such as eq.Auto()")
    then: LinearSolver = linear_field(_then)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ", since it measures whole samples: pass it alone, Implicit(linear={}(...))"
        refuse_ignored(self, "first", ["per_row"], whole.format(type(self.first).__name__))
        for option in ("first", "then"):
            own = ": the limits of a fallback are its own, Fallback({limit}={given!r})"
            refuse_ignored(self, option, ("rtol", "atol", "error", "max_evals"), own)

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
        if budget is not None or self.max_evals < 2:
            return super().solve(product, g, start, rtol=rtol, budget=budget, trust=trust)
        limits = {"rtol": self.rtol, "atol": self.atol, "error": self.error}
        first = replace(self.first, **limits, max_evals=self.max_evals // 2)
        run = iterate_affine(first, product, g, start, rtol)
        left = run.status != Status.CONVERGED
        if not private.some(left):
            return run
        budget = torch.where(left, self.max_evals - run.evals, 0)
        more = super().solve(product, g, run.value, rtol=rtol, budget=budget)
        return replace(
            run,
            value=choose(left, more.value, run.value),
            status=torch.where(left, more.status, run.status),
            reason=torch.where(left, more.reason, run.reason),
            evals=run.evals + torch.where(left, more.evals, 0),
            residual=torch.where(left, more.residual, run.residual),
            course=torch.where(left, *(_estimate(x) for x in (more, run))),
        )

    @override
    def min_products(self, entries: int) -> int:
        return self.then.min_products(entries)

    @override
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        return self.then.cycle(product, start, goal, budget, active)


LOOSEST = 0.1
"""The loosest tolerance that an adjoint follows a poor forward solve to."""


@dataclass(frozen=True, kw_only=True)
class Implicit(Adjoint):
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

    linear: LinearSolver | Solver = instance_field(
        Fallback,
        LinearSolver | Solver,
        "a linear or a forward solver, such as eq.GMRES() or eq.Anderson()",
    )
    follow: float | None = nonnegative_field(None)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.linear
        if isinstance(given, Solver) and given.by_leaf:
            raise TypeError(
                f"Implicit(linear=...): expected one rtol and one atol, got rtol={given.rtol}, "
                f"atol={given.atol}: the backward solve measures the leaves of the state together"
            )

    @property
    def finest(self) -> float:
        """The backward solve's relative tolerance."""
        return finest(self.linear.rtol)

    def _rtol(self, record: Record, floor: float) -> Tensor | None:
        """Each sample's tolerance, in place of the linear solver's."""
        if self.follow is None or record.residual is None:
            return None
        reached = self.follow * record.residual
        finest = max(self.finest, floor)
        return torch.clamp(reached, finest, max(finest, LOOSEST))

    @override
    def propagate(self, system: LinearSystem, g: Leaves) -> Leaves:
        equation, transposed = system.equation, system.transposed
        record = equation.record if transposed else None
        rtol = None if equation.record is None else self._rtol(equation.record, equation.floor)
        linear = self.linear.no_finer_than(equation.floor)
        affine = Affine(
            parent=equation,
            solver=linear,
            transposed=transposed,
            adjoint=self,
            count=len(g),
            solution_record=record,
            rtol=rtol,
        )
        if system.graph is None:
            return solve_implicitly(affine, g, [], [*system.z, *system.p, *g])[0]
        layout, run = affine.solve_with(system.graph, g)
        return layout.leaves(run.value)


def sum_series(product: Product, g: Leaves, steps: int, damping: float) -> Leaves:
    """damping (1 + B + ... + B^(steps-1)) g, with B v = damping A v + (1 - damping) v.

    By Horner's rule, u <- B u + damping g: steps - 1 products.
    """
    if damping == 1:  # fewer passes over a state that may be large beside f
        u = list(g)
        for _ in range(steps - 1):
            u = [a + x for a, x in zip(product(u), g, strict=True)]
        return u
    u = [damping * x for x in g]
    for _ in range(steps - 1):
        u = [
            damping * a + (1 - damping) * b + damping * x
            for a, b, x in zip(product(u), u, g, strict=True)
        ]
    return u


@dataclass(frozen=True, kw_only=True)
class NeumannPhantom(Adjoint):
    """The Neumann-series phantom gradient (NPG): the exact adjoint's series, cut short.

        u = damping (I + B + ... + B^(steps-1))^T dL/dz*,  B = damping J + (1 - damping) I,

    at the solution found. The error is B^steps applied to the exact (I - J)^-T dL/dz*: with
    ||B|| = r < 1 a relative error of at most r^steps, in u. Costs `steps` - 1 vector-Jacobian
    products and no memory beyond one evaluation of f. Higher derivatives are those of this series.

    Source: Bai 2022 (thesis), eq. 5.12; Geng et al. 2021.

    Attributes:
        steps: terms kept, the k of the papers, >= 1.
        damping: their lambda, between 0 and 2, exclusive.
    """

    fixed_steps: ClassVar[bool] = True
    steps: int = whole_field(5, 1)
    damping: float = damping_field(0.5)

    @override
    def solve(self, product: Product, g: Leaves) -> Leaves:
        return sum_series(product, g, self.steps, self.damping)


@dataclass(frozen=True, kw_only=True)
class JacobianFree(Adjoint):
    """The Jacobian-free gradient (JFB): u = dL/dz*, as if (I - J)^-1 were the identity.

    The error in u is J^T (I - J)^-T dL/dz*, of relative size ||J||; a descent direction where J is
    a contraction and df/dp well conditioned. Costs nothing but one evaluation of f. Equal to
    `NeumannPhantom(steps=1, damping=1)`.

    Source: Bai 2022 (thesis), eq. 5.16; Fung et al. 2021.
    """

    fixed_steps: ClassVar[bool] = True

    @override
    def solve(self, product: Product, g: Leaves) -> Leaves:
        return g


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

    needs_inverse: ClassVar[bool] = True
    refine: int = whole_field(0, 0)
    fallback: float | None = nonnegative_field(1.8)

    @override
    def find(self, problem: Problem, z: Leaves, p: Leaves) -> Run:
        if not private.differentiates():  # nobody will ask for the matrix
            return super().find(replace(problem, adjoint=JacobianFree()), z, p)
        solver = problem.solver
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
        return super().find(problem, z, p)

    @override
    def propagate(self, system: LinearSystem, g: Leaves) -> Leaves:
        record = system.equation.record
        kept = None if record is None else record.inverse
        if kept is None:
            raise RuntimeError(
                "Shine found no matrix of the forward solve: it keeps none under torch.vmap. Use "
                "eq.Implicit() or eq.JacobianFree() there"
            )
        layout, inverse = kept
        apply = inverse.multiply_transposed if system.transposed else inverse.multiply
        constant = layout.rows(g)
        u = self._apply_inverse(apply, constant)
        for _ in range(self.refine):
            image = layout.rows(system.product(layout.leaves(u)))
            residual = [a + b - c for a, b, c in zip(image, constant, u, strict=True)]
            u = add_scaled(u, 1.0, apply(residual))
        return layout.leaves(u)

    def _apply_inverse(self, apply: Callable[[Rows], Rows], g: Rows) -> Rows:
        """M g, and g itself where M g is out of all proportion."""
        found = apply(g)
        if self.fallback is None:
            return found
        return choose(length(found) <= self.fallback * length(g), found, g)
