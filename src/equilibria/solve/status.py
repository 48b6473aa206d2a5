"""How a solve ended, and what it cost."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from torch import Tensor


class Status(enum.IntEnum):
    """How the solve of one sample ended. `Status(code).message` is a sentence for the reader."""

    CONVERGED = 0
    MAX_EVALS = 1
    STALLED = 2
    DIVERGED = 3
    NONFINITE = 4

    @property
    def message(self) -> str:
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: "the residual reached the tolerance",
    Status.MAX_EVALS: "the evaluations ran out before the residual reached the tolerance",
    Status.STALLED: "the best residual fell by less than 1 % in `patience` evaluations",
    Status.DIVERGED: "the residual grew beyond 1e8 times its first value",
    Status.NONFINITE: "the function returned NaN or inf",
}


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What each sample cost and how close it came. All tensors are detached.

    Attributes:
        evals: `(batch,)` int64, evaluations of f (or vector-Jacobian products, in an adjoint solve)
            that the sample took part in.
        residual: `(batch,)` relative residual ||f(z) - z|| / ||f(z)|| of the value returned, in
            the RMS norm over all entries of the sample.
        trace: `(evals, batch)` relative residual after each evaluation, NaN once a sample has
            finished; None unless asked for.
        leaf_trace: `(evals, leaves, batch)` the same for each leaf of the state.
        ritz: `(batch, k)` complex, Ritz values of df/dz from the differences that the solver had
            stored when the sample ended, the largest first, NaN where there are fewer: estimates of
            the outermost eigenvalues, at no evaluation. None unless a trace was asked for and the
            solver is one that tells (`Anderson`).
        choices: `(batch, phases)` int64, evaluations spent in each phase of a solver that has
            several (`Auto`); None for others.
    """

    evals: Tensor
    residual: Tensor
    trace: Tensor | None = None
    leaf_trace: Tensor | None = None
    ritz: Tensor | None = None
    choices: Tensor | None = None


class SolveError(RuntimeError):
    """A solve that did not converge, under `throw=True`."""


class SolveWarning(UserWarning):
    """A backward solve that did not converge: the gradient of the samples named is inexact."""


def describe_failure(what: str, status: Tensor, residual: Tensor) -> str | None:
    """Names the samples that did not converge, how each ended and its residual; None if all did."""
    status, residual = status.flatten(), residual.flatten()
    codes: Any = status
    failed: list[int] = (codes != Status.CONVERGED).nonzero().flatten().tolist()
    if not failed:
        return None
    lines = [
        f"{what}: {len(failed)} of {status.numel()} samples did not converge "
        "(relative residual in brackets):"
    ]
    for code in sorted({int(status[i]) for i in failed}):
        members = [i for i in failed if int(status[i]) == code]
        named = ", ".join(f"{i} [{float(residual[i]):.2e}]" for i in members[:8])
        more = f" and {len(members) - 8} more" if len(members) > 8 else ""
        lines.append(f"  {Status(code).name} ({Status(code).message}): samples {named}{more}")
    return "\n".join(lines)
