"""What to do about forward solves that did not converge, by what plain iteration does with them."""

from __future__ import annotations

import math

from equilibria.stability.examination import (
    Examination,
    PlainIteration,
    setting,
    share_converged,
    tame,
    unsolved,
)
from equilibria.stability.plain_iteration import KINDS
from equilibria.words import list_some, percent, plural

_WORDS = {
    "converges": "converges",
    "front": "carries a signal through the state, entry by entry",
    "cycle": "runs in a cycle",
    "diverges": "drives the state apart",
    "drifts": "moves the state in one direction without end",
    "slow": "converges slowly",
    "wanders": "wanders",
}

_BROKEN = {
    "DIVERGED": "The layer drives its state apart. Begin with smaller weights, normalise inside "
    "the cell, or bound the weights that act on z with spectral_norm.",
    "NONFINITE": "The cell returned NaN or infinity. Look for overflow, a division or a logarithm "
    "in it, for a learning rate that is too high, and for NaN in the data.",
}


def describe_plain(plain: PlainIteration) -> str:
    """Say what plain iteration does with the samples that did not converge."""
    shares = sorted(plain.kinds.items(), key=lambda item: -item[1])
    what = [f"{_WORDS[kind]} in {percent(share)}" for kind, share in shares if share > 0]
    return (
        f"With up to {plural(plain.budget, 'evaluation')} for each of these samples, plain "
        f"iteration {list_some(what, len(what))}."
    )


def remedy(examination: Examination, status: str) -> str:
    """What to do about solves that end with a status."""
    if status == "NONFINITE":
        return _BROKEN[status]
    stalled = status == "STALLED"
    if stalled and examination.forward.residual.max < 5e-3:
        return (
            "In bfloat16 the residual cannot fall below about 2.5e-3, in float32 about 3e-7: "
            f"choose {setting(examination, 'solver.rtol', 'rtol')} above that. Else try Broyden, "
            "or Anderson with a longer history."
        )
    if (plain := examination.plain) is not None:
        # Of kinds of which there are as many, the first named.
        kind = max(reversed(KINDS), key=lambda each: plain.kinds.get(each, 0.0))
        if kind in _BY_KIND:
            return _BY_KIND[kind](examination, plain)
    if stalled:
        return (
            f"The residual wanders far above the tolerance. Try Broyden, or {_lower(examination)}"
        )
    if status == "MAX_EVALS":
        raised = setting(examination, "solver.max_evals", "max_evals")
        return f"Raise {raised}, or {_lower(examination)}"
    return _BROKEN[status]


def _lower(examination: Examination) -> str:
    radius = examination.jacobian.spectral_radius.max
    # Contraction says how where it warns: not where nothing converged and the radius is below 1.
    here = radius < 0.9 or (unsolved(examination) and radius < 1)
    how = f". {tame(examination, radius)}" if here else ": see Contraction."
    return f"lower the spectral radius{how}"


def _advise_front(examination: Examination, plain: PlainIteration) -> str:
    found = plain.evals.max
    most = f"{2 * found:.0f}" if math.isfinite(found) else f"{4 * plain.budget}"
    how = setting(
        examination,
        f"solver.name: Picard, solver.patience: null, solver.max_evals: {most}",
        f"Picard(patience=None, max_evals={most}) and the last iterate, returns='last'",
    )
    return (
        "A signal travels through the state, and the solver gets in its way or ends too early. "
        f"Take plain iteration with a large budget: {how}. It takes as many evaluations as the way "
        "is long: more for larger inputs."
    )


def _advise_cycle(examination: Examination, plain: PlainIteration) -> str:
    how = setting(
        examination,
        "solver.name: Anderson; or solver.name: Picard, solver.damping: 0.5",
        "Anderson(), or Picard(damping=0.5)",
    )
    return (
        f"Plain iteration returns to where it was after {plain.period.p50:.0f} evaluations. "
        f"Accelerate it or damp it: {how}."
    )


def _advise_divergence(examination: Examination, plain: PlainIteration) -> str:
    how = setting(
        examination,
        "solver.name: NewtonKrylov; or solver.name: Picard, solver.damping: 0.5",
        "NewtonKrylov(), or Picard(damping=0.5)",
    )
    return f"{_BROKEN['DIVERGED']} Without training again, try {how}."


def _advise_drift(examination: Examination, plain: PlainIteration) -> str:
    return (
        "Each evaluation adds nearly the same to the state, which then has no fixed point, or one "
        "very far away. Normalise the state inside the cell, or shrink it there, as in "
        "0.9 * z + g(z, x)."
    )


def _advise_slow(examination: Examination, plain: PlainIteration) -> str:
    raised = setting(examination, "solver.max_evals", "max_evals")
    return (
        f"The map contracts, slowly. Raise {raised}, take Anderson or Broyden, or "
        f"{_lower(examination)}"
    )


def _advise_plain(examination: Examination, plain: PlainIteration) -> str:
    most, status = f"{math.ceil(1.5 * plain.evals.max)}", examination.forward.status
    said = f"Plain iteration takes {plain.evals.max:.0f} evaluations at most"
    if 2 * status.get("MAX_EVALS", 0.0) >= 1 - share_converged(examination):
        raised = setting(examination, "solver.max_evals", "max_evals")
        return f"{said}: raise {raised} to {most}."
    how = setting(
        examination,
        f"solver.name: Picard, solver.patience: null, solver.max_evals: {most}",
        f"Picard(patience=None, max_evals={most})",
    )
    return f"{said}, and acceleration leads away from its solutions: take {how}."


_BY_KIND = {
    "front": _advise_front,
    "cycle": _advise_cycle,
    "diverges": _advise_divergence,
    "drifts": _advise_drift,
    "slow": _advise_slow,
    "converges": _advise_plain,
}
