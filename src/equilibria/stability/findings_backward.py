"""Findings about gradients: how right they are, and what the tolerances promise."""

from __future__ import annotations

import math

from equilibria.stability.derivative_check import ADVICE, describe_cuts
from equilibria.stability.examination import (
    Examination,
    Finding,
    describe_vanished,
    number,
    setting,
    tame,
    tell_gap,
    unsolved,
)
from equilibria.words import percent

AFTER = "the adjoint's rtol"
LINEAR = "max_evals of the adjoint's linear solver"

COMPARE = (
    "`equilibria gradients`, or stability.compare_adjoints, compares all adjoints on a batch and "
    "says which will do."
)


def derivatives(examination: Examination) -> Finding | None:
    """Are the cell's derivatives those that autograd gives?

    Unhealthy: one is not. Nothing to say where all are, as they nearly always are.
    """
    cuts = examination.gradient.cuts
    if not cuts:
        return None
    return Finding("Derivatives", "unhealthy", f"{describe_cuts(cuts)}.", ADVICE)


def gradient(examination: Examination) -> Finding:
    """Does training follow the gradient?

    Healthy: cosine of .99 (8 degrees) and a length within 5 %, far inside the noise of stochastic
    gradients. Watch: down to .9 (26 degrees), still a safe direction of descent; training with
    phantom gradients usually lives here. Unhealthy: below, or where not even the reference solves,
    in float64 and with 400 evaluations, got below a residual of 1e-6.
    """
    found = examination.gradient
    name = examination.adjoint.partition("(")[0]
    if not found.reference <= 1e-6:
        left = f"a residual of {found.reference:.0e}" if found.reference < math.inf else "too much"
        return Finding(
            "Gradient",
            "unhealthy",
            f"There is no exact gradient to compare that of {name} with: even in float64, with "
            f"400 evaluations and more, {left} is left in the worst sample.",
            "Where there is no fixed point there is no gradient to compare with: see Convergence "
            "and Backward solve first.",
        )
    if not math.isfinite(found.cosine):
        return Finding(
            "Gradient", "unhealthy", "The gradient is not finite.", "See Convergence first."
        )
    angle = math.degrees(math.acos(max(-1.0, min(1.0, found.cosine))))
    text = "" if found.vanished is None else f"{describe_vanished(found.vanished)} "
    text += (
        f"The gradient of {name} with respect to the layer's {found.of} points {angle:.1f}° away "
        f"from the exact one (cosine {found.cosine:.4f}) and is {found.norm_ratio:.3f} times as "
        "long. With respect to the layer's inputs, the smallest cosine of a sample is "
        f"{found.sample_cosine:.3f}."
    )
    if found.cosine >= 0.99 and abs(found.norm_ratio - 1) <= 0.05:
        return Finding("Gradient", "healthy", text)
    advice = {
        "Implicit": setting(
            examination,
            "Lower solver.rtol or adjoint.linear.rtol, or raise their max_evals.",
            "Lower rtol of the solver or of the linear solver, or raise their max_evals.",
        ),
        "Unrolled": "Let the forward solve run longer: the path is cut before it arrives.",
        "AdaptiveAdjoint": (
            "Raise its min_cosine, lower check_every, or use Implicit, which is exact."
        ),
        "JacobianFree": "Use NeumannPhantom with more steps, or Implicit, which is exact.",
    }
    remedy = advice.get(name, "Use more steps, or Implicit, which is exact.")
    if name != "Implicit":
        remedy += f" {COMPARE}"
    if unsolved(examination):
        remedy = "It is taken where the solves stopped, not at a solution: see Convergence first."
    return Finding("Gradient", "watch" if found.cosine >= 0.9 else "unhealthy", text, remedy)


def backward(examination: Examination) -> Finding | None:
    """Does the linear solve behind the gradient converge?

    Healthy: for all samples. Watch: for 95 % or more. Nothing to say where the adjoint in use
    solves nothing.
    """
    solve = examination.gradient.backward
    if solve is None:
        return None
    evals, failed = solve.evals, 1 - solve.status["CONVERGED"]
    if failed == 0:
        return Finding(
            "Backward solve",
            "healthy",
            f"It converged for every sample, after {evals.mean:.1f} vector–Jacobian products on "
            f"average and {evals.max:.0f} at most.",
        )
    return Finding(
        "Backward solve",
        "watch" if failed <= 0.05 else "unhealthy",
        f"It did not converge for {percent(failed)} of the samples{tell_gap(solve.residual.max)}",
        f"Raise {setting(examination, 'adjoint.linear.max_evals', LINEAR)}, or restart GMRES less "
        "often.",
    )


def error(examination: Examination) -> Finding | None:
    """What do the tolerances promise of the adjoint?

    Healthy: an error of at most 10 % in nine of ten samples, less than the noise of a batch's
    gradient. Watch: more. The bound holds for the worst direction, so that the error measured is
    usually a fraction of it. Nothing to say where the adjoint in use solves nothing.
    """
    bound = examination.gradient.bound
    if bound is None:
        return None
    if not math.isfinite(bound.error.p90):
        return Finding(
            "Gradient's bound",
            "watch",
            "The smallest singular value of I - J could not be estimated: I - J is close to "
            "singular, and no tolerance bounds the gradient's error.",
            "A lower spectral radius helps. "
            + tame(examination, examination.jacobian.spectral_radius.max),
        )
    from_forward = bound.lipschitz.p90 * bound.forward
    text = (
        "At these tolerances the estimated bound on the adjoint's relative error, over the samples "
        f"that converged, is {percent(bound.error.p50)} (median) and {percent(bound.error.p90)} "
        f"(90th percentile): (adjoint rtol {bound.adjoint:g} + {bound.lipschitz.p90:.2g} x forward "
        f"rtol {bound.forward:g}) / {number(bound.sigma_min.p50)}, the smallest singular value of "
        "I - J, which is estimated from above: the bound may be a few per cent "
        f"larger. Measured: {percent(bound.measured.p90)} (90th percentile)."
    )
    if bound.error.p90 <= 0.1:
        spare = 0.02 * bound.sigma_min.p50
        advice = ""
        if 10 * bound.adjoint < from_forward:
            advice = (
                "The forward tolerance dominates: "
                f"{setting(examination, 'adjoint.linear.rtol', AFTER)} could be "
                f"{_one_digit(from_forward / 3)} instead of {bound.adjoint:g} at no loss."
            )
        elif 10 * from_forward < bound.adjoint and bound.adjoint < spare / 2:
            advice = (
                f"There is room: with an adjoint tolerance of {_one_digit(spare)} it stays below "
                "5 % or so."
            )
        return Finding("Gradient's bound", "healthy", text, advice)
    if bound.adjoint >= from_forward:
        lower = setting(examination, "adjoint.linear.rtol", "rtol of the adjoint's solver")
        advice = f"Lower {lower} to {_one_digit(0.03 * bound.sigma_min.p50)}."
    else:
        needed = 0.05 * bound.sigma_min.p50 / bound.lipschitz.p90
        advice = (
            f"Lower {setting(examination, 'solver.rtol', 'rtol of the forward solver')} to "
            f"{_one_digit(needed)}; the adjoint's is enough."
        )
    if bound.sigma_min.p50 < 0.1:
        advice += " I - J is close to singular; a lower spectral radius helps. " + tame(
            examination, examination.jacobian.spectral_radius.max
        )
    return Finding("Gradient's bound", "watch", text, advice)


def _one_digit(tolerance: float) -> str:
    """One digit, downward: 3e-4."""
    power = math.floor(math.log10(tolerance))
    return f"{math.floor(tolerance / 10.0**power)}e{power}"
