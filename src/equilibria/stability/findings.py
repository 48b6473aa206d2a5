"""From numbers to words: all findings of an examination.

Every function that is called here looks at one part of an examination and returns one finding. Its
docstring says where its thresholds lie and why there. A sentence about solutions is said of the
samples that converged, and of no others.
"""

from __future__ import annotations

from equilibria.stability.examination import Examination, Finding, Severity
from equilibria.stability.findings_backward import backward, derivatives, error, gradient
from equilibria.stability.findings_depth import depth
from equilibria.stability.findings_forward import (
    accuracy,
    convergence,
    cost,
    precision,
    uniqueness,
    weights,
)
from equilibria.stability.findings_jacobian import contraction, sensitivity

__all__ = ["findings"]

_ORDER: tuple[Severity, ...] = ("unhealthy", "watch", "healthy")


def findings(examination: Examination) -> tuple[Finding, ...]:
    """All findings, the worst first."""
    if examination.broken:
        return (weights(examination),)
    if examination.forward.status.get("NONFINITE", 0.0) == 1:
        return (convergence(examination),)  # nothing else could be measured
    found = (
        convergence(examination),
        accuracy(examination),
        precision(examination),
        cost(examination),
        contraction(examination),
        sensitivity(examination),
        uniqueness(examination),
        derivatives(examination),
        gradient(examination),
        backward(examination),
        error(examination),
        depth(examination),
    )
    return tuple(
        sorted((f for f in found if f is not None), key=lambda f: _ORDER.index(f.severity))
    )
