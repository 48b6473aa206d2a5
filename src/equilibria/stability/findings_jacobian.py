"""Findings about J = df/dz: whether the fixed point attracts, and what one evaluation amplifies."""

from __future__ import annotations

import math

from equilibria.stability.advice import (
    converged,
    evaluations_a_digit,
    number,
    tame,
    unsolved,
)
from equilibria.stability.examination import Examination, Finding, Summary
from equilibria.words import percent

__all__ = ["contraction", "sensitivity"]


def contraction(examination: Examination) -> Finding:
    """Does the fixed point attract, and how strongly?

    rho is what the error is multiplied by in each plain iteration, in the long run: ln 10 / -ln rho
    evaluations buy a decimal digit, 22 of them at rho = .9, where we begin to say watch. From 1 on
    plain iteration leaves the fixed point and Neumann series do not converge; Anderson, Broyden and
    GMRES may still, so this is unhealthy only where such an iteration is in use. Below .02 one
    evaluation gives the answer to 2 %: the layer has no depth.

    Where some samples converged, the thresholds are asked of these; the others' radii are given
    beside, since they may tell why. Where none did, there is no fixed point to be judged.
    """
    jacobian = examination.jacobian
    text = _radii(examination)
    radius = jacobian.spectral_radius if unsolved(examination) else jacobian.solved
    if not math.isfinite(radius.max):
        return Finding("Contraction", "unhealthy", f"{text}: the Jacobian is not finite.")
    if jacobian.expanding > 0:
        return _expanding(examination, text)
    if unsolved(examination):
        return Finding(
            "Contraction",
            "watch",
            f"{text}: there f contracts, and yet no solve arrived.",
            "The solves ended too early, or f does not contract on their way. See Convergence.",
        )
    point = "the fixed point"
    if examination.starts.apart > 0:
        point += " that was reached"  # one of several
    if radius.max >= 0.9:
        return Finding(
            "Contraction",
            "watch",
            f"{text}: {point} attracts, but slowly. Plain iteration would need "
            f"{evaluations_a_digit(radius.max)} for a decimal digit.",
            f"Watch it from epoch to epoch: it tends to grow. {tame(examination, radius.max)} Do "
            "not cut the adjoint to a few terms.",
        )
    if radius.max < 0.02:
        return Finding(
            "Contraction",
            "watch",
            f"{text}: the state hardly feeds back, and one evaluation is nearly the answer.",
            "The cell ignores z. Look at how z enters it, and at its initial weights.",
        )
    return Finding(
        "Contraction",
        "healthy",
        f"{text}: {point} attracts. In the worst sample plain iteration would gain a decimal "
        f"digit with {evaluations_a_digit(radius.max)}.",
    )


def _radii(examination: Examination) -> str:
    """The spectral radius, and where it was measured."""
    jacobian, share = examination.jacobian, converged(examination)
    if share == 0:
        return (
            "No solve converged; where they ended, the spectral radius of the Jacobian is "
            + _mean_and_max(jacobian.spectral_radius)
        )
    if share < 1:
        return (
            f"At the solutions of the {percent(share)} of the samples that converged, the spectral "
            f"radius of the Jacobian is {_mean_and_max(jacobian.solved)}; over all samples, where "
            f"their solves ended, it is {_mean_and_max(jacobian.spectral_radius)}"
        )
    radius = _mean_and_max(jacobian.spectral_radius)
    return f"The spectral radius of the Jacobian at the solution is {radius}"


def _mean_and_max(radius: Summary) -> str:
    if not math.isfinite(radius.max):
        return "unknown"
    return f"{number(radius.mean)} on average and {number(radius.max)} at most"


def _expanding(examination: Examination, text: str) -> Finding:
    """The finding where the spectral radius of some samples is 1 or more."""
    relies = [
        name
        for name, given in (("solver", examination.solver), ("adjoint", examination.adjoint))
        if given.startswith(("Picard", "JacobianFree", "NeumannPhantom", "Phantom"))
        or "Neumann(" in given
        or "Picard(" in given
    ]
    away = " from the fixed point" * (converged(examination) == 1)
    advice = ""
    if relies:
        advice = (
            f"The {' and the '.join(relies)} in use counts on a radius below 1: use Anderson "
            "or Broyden forward and Implicit backward. "
        )
    return Finding(
        "Contraction",
        "unhealthy" if relies else "watch",
        f"{text}; {percent(examination.jacobian.expanding)} of the samples have 1 or more, where "
        f"plain iteration moves away{away}.",
        advice + tame(examination, examination.jacobian.spectral_radius.max),
    )


def sensitivity(examination: Examination) -> Finding | None:
    """How much does one evaluation stretch a perturbation?

    ||J||_F / sqrt(entries) is the root mean square of the singular values. At 1 or more, random
    perturbations of the state grow in the first evaluation, whatever the spectral radius promises
    for the long run; the doctor says watch.
    """
    stretch, radius = examination.jacobian.stretch, examination.jacobian.spectral_radius
    if not math.isfinite(stretch.mean):
        return None
    text = (
        f"The Jacobian's norm is {number(examination.jacobian.norm.mean)} on average: one "
        f"evaluation multiplies a random perturbation of the state by {number(stretch.mean)}"
    )
    if stretch.mean < 1:
        return Finding("Sensitivity", "healthy", f"{text}.")
    transient = radius.max < 1 and converged(examination) == 1
    return Finding(
        "Sensitivity",
        "watch",
        text + (", before it begins to shrink." if transient else "."),
        "Rounding and noise are amplified on the way, and early iterates are poor. Begin with "
        "smaller weights, or bound those that act on z with spectral_norm.",
    )
