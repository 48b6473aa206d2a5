"""How a solve ended, and what it cost."""

from __future__ import annotations

import enum
import inspect
import math
import os
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.estimate import estimate_error


class Status(enum.IntEnum):
    """How the solve of one sample ended. `Status(code).message` is a sentence for the reader.

    CONVERGED: ||f(z) - z|| <= atol + rtol ||f(z)||, and z has not run away, see `Limits`.
    MAX_EVALS: none of the others within the budget.
    STALLED: the residual stopped falling: see `Solver.patience`; or the method has nothing left to
    try, as a direct solve of a singular system.
    DIVERGED: ||f(z) - z|| is over 1e10 times the larger of its first value and ||f|| at the start;
    or over 1e8 times, and no longer falling; or f is finite and the square of its length is not.
    NONFINITE: f returned NaN or inf.
    """

    CONVERGED = 0
    MAX_EVALS = 1
    STALLED = 2
    DIVERGED = 3
    NONFINITE = 4

    @property
    def message(self) -> str:
        return _MESSAGES[self]


RUNNING = -1
"""In place of a `Status` code: the sample has not ended."""


class Reason(enum.IntEnum):
    """Why a sample ended as it did, where its `Status` leaves that open.

    NONE: the status says it.
    GROWTH: the relative residual is small only because f(z) has grown: see `Limits`.
    SINGULAR: the linear system has no solution, or rounding hides it.
    GRADIENT: the incoming gradient is not finite.
    ERROR: the residual reached the tolerance, the estimated error did not, or rounding hides it:
    see `error`.
    """

    NONE = 0
    GROWTH = 1
    SINGULAR = 2
    GRADIENT = 3
    ERROR = 4


_MESSAGES = {
    Status.CONVERGED: "the residual reached the tolerance",
    Status.MAX_EVALS: "did not converge within max_evals evaluations",
    Status.STALLED: "the residual stopped falling before it reached the tolerance",
    Status.DIVERGED: "the residual grew far beyond the size of f at the start",
    Status.NONFINITE: "the function returned NaN or inf",
}
_REASONS = {
    Reason.NONE: "",
    Reason.GROWTH: "f(z) has grown, and the residual is small only beside it",
    Reason.SINGULAR: "the linear system is singular",
    Reason.GRADIENT: "the incoming gradient is not finite",
    Reason.ERROR: "the residual reached rtol, but the estimated error is not below half of `error`",
}
_ADVICE: dict[tuple[Status, Reason], str] = {
    (Status.MAX_EVALS, Reason.NONE): "raise max_evals, or loosen rtol",
    (Status.MAX_EVALS, Reason.ERROR): "raise max_evals, or loosen error",
    (Status.STALLED, Reason.ERROR): "loosen error, or compute in float64",
    (Status.MAX_EVALS, Reason.GROWTH): "raise max_evals; there may be no fixed point",
    (Status.STALLED, Reason.NONE): (
        "loosen rtol if this is the precision that f computes in, or try another solver"
    ),
    (Status.STALLED, Reason.GROWTH): "there may be no fixed point; else set patience=None",
    (Status.STALLED, Reason.SINGULAR): "df/dz has an eigenvalue 1: the gradient does not exist",
    (Status.DIVERGED, Reason.NONE): "add damping, bound the map, or try eq.NewtonKrylov()",
    (Status.NONFINITE, Reason.NONE): "look at the range of the state and of the weights",
    (Status.NONFINITE, Reason.GRADIENT): "it is passed on: a gradient scaler skips such a step",
}


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What each sample cost and how close it came. All tensors are detached.

    Attributes:
        evals: `(batch,)` int64, evaluations of f (or vector-Jacobian products, in an adjoint solve)
            that the sample took part in.
        residual: `(batch,)` relative residual ||f(z) - z|| / ||f(z)|| of the value returned, in
            the RMS norm over all entries of the sample.
        error: `(batch,)` estimate of the relative error ||z - z*|| / ||z*|| of the value returned,
            from the last steps of the solve, at no evaluation; computed when it is read. NaN where
            the solve ended after one evaluation or returns an earlier iterate than its last, where
            the residual has last changed by no more than rounding, and under `Unrolled` and
            `Phantom`. It takes f to be nearly linear between these steps, and
            the error to lie in directions that they still move in: an error that contracts so
            slowly that it hardly shows in them is underestimated. Of a linear solver's solution u
            it is ||r|| / ||g||, which takes the rest r of (I - A) u = g to be amplified as g is.
        trace: `(evals, batch)` relative residual after each evaluation, NaN once a sample has
            finished; None unless asked for.
        leaf_trace: `(evals, leaves, batch)` the same for each leaf of the state.
        ritz: `(batch, k)` complex, Ritz values of df/dz from the differences that the solver had
            stored when the sample ended, the largest first, NaN where there are fewer: estimates of
            the outermost eigenvalues, at no evaluation. None unless a trace was asked for and the
            solver is one that tells (`Anderson`, and `Auto` once it accelerates).
        choices: `(batch, phases)` int64, evaluations spent in each phase of a solver that has
            several (`Auto`, and a `NeuralSolver` with mixing weights); None for others.
        reason: `(batch,)` int8, a `Reason` code for each sample.
        overall: `()`, ||f(z) - z|| / ||f(z)|| over all samples together, of `DEQ.advance`; None of
            a solve.
    """

    evals: Tensor
    residual: Tensor
    trace: Tensor | None = None
    leaf_trace: Tensor | None = None
    ritz: Tensor | None = None
    choices: Tensor | None = None
    reason: Tensor | None = None
    overall: Tensor | None = None
    _course: Tensor | None = field(default=None, repr=False)

    @cached_property
    def error(self) -> Tensor:
        if self._course is None:
            return torch.full_like(self.residual, math.nan)
        return estimate_error(self._course, self.residual)


class SolveError(RuntimeError):
    """A solve that did not converge, under `throw=True`."""


class SolveWarning(UserWarning):
    """A solve, forward or backward, that did not converge, or one that did and whose estimated
    error is far above the tolerance; or a derivative that autograd misses."""


_OWN = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(torch.__file__))


def warn(text: str, category: type[Warning] = SolveWarning) -> None:
    """Warn at the line outside of this package and of torch that led here."""
    frame: Any = inspect.currentframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "<unknown>")
    place = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(text, category, *place, module=module, registry=registry)


def describe_failure(what: str, status: Tensor, reason: Tensor, residual: Tensor) -> str | None:
    """Name the samples that did not converge, how each ended, its residual, and what to do; None if
    all converged."""
    with private.outside_transforms():
        outcome: list[Any] = [private.bare(x).flatten() for x in (status, reason, residual)]
        failed: Any = outcome[0].nonzero().flatten()  # CONVERGED is 0
        if not len(failed):
            return None
        rows = zip(failed.tolist(), *(x[failed].tolist() for x in outcome), strict=True)
    groups: dict[tuple[Status, Reason], list[str]] = {}
    for number, code, why, size in rows:
        groups.setdefault((Status(code), Reason(why)), []).append(f"{number} [{size:.2e}]")
    lines = [
        f"{what}: {len(failed)} of {outcome[0].numel()} samples did not converge "
        "(relative residual in brackets):"
    ]
    for (code, why), members in sorted(groups.items()):
        named = ", ".join(members[:8])
        more = f" and {len(members) - 8} more" if len(members) > 8 else ""
        once = code == Status.MAX_EVALS and what in ("attach", "advance")
        said = "the residual exceeds the tolerance" if once else _REASONS[why] or code.message
        lines.append(f"  {code.name} ({said}): samples {named}{more}")
        if advice := "solve further first, or loosen rtol" if once else _ADVICE.get((code, why)):
            lines.append(f"    {advice[0].upper()}{advice[1:]}.")
        if code == Status.STALLED and what in ("fixed_point", "root_find") and not why:
            lines.append("    Set patience=None if a signal is still on its way through the state.")
    return "\n".join(lines)


def raise_if_failed(what: str, status: Tensor, reason: Tensor, residual: Tensor) -> None:
    """Raise `SolveError`, with all that there is to say of samples that have not converged."""
    if (problem := describe_failure(what, status, reason, residual)) is not None:
        raise SolveError(problem)
