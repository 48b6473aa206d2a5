"""A forward solver, then a linear one for the samples that it leaves."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.auto import Auto
from equilibria.solve.estimate import estimate_error
from equilibria.solve.gmres import GMRES
from equilibria.solve.linear import (
    Goal,
    LinearSolver,
    Measured,
    Product,
    iterate_affine,
    linear_field,
)
from equilibria.solve.loop import Run
from equilibria.solve.options import instance_field
from equilibria.solve.rows import Rows, choose
from equilibria.solve.solvers import Solver
from equilibria.solve.status import Status


def _first() -> Solver:
    return Auto(patience=10)


def _error(run: Run) -> Tensor:
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
        if self.first.per_row:
            raise ValueError(
                "Fallback(first=...): per_row = True would be ignored, since it measures whole "
                f"samples: pass it alone, Implicit(linear={type(self.first).__name__}(...))"
            )
        for name, nested in (("first", self.first), ("then", self.then)):
            usual = {each.name: each.default for each in fields(nested)}
            for limit in ("rtol", "atol", "error", "max_evals"):
                given = getattr(nested, limit)
                if given != usual[limit]:
                    raise ValueError(
                        f"Fallback({name}=...): {limit} = {given!r} would be ignored: the limits "
                        f"of a fallback are its own, Fallback({limit}={given!r})"
                    )

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
            course=torch.where(left, *(_error(x) for x in (more, run))),
        )

    @override
    def min_products(self, entries: int) -> int:
        return self.then.min_products(entries)

    @override
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        return self.then.cycle(product, start, goal, budget, active)
