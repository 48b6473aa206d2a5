"""From numbers to words: thresholds, and what to do beyond them.

Every function looks at one part of an examination and returns one finding. Its docstring says where
its thresholds lie and why there.
"""

from __future__ import annotations

import math

from equilibria.metric import Metric
from equilibria.stability.advice import evaluations_a_digit, number, percent, tame, unsolved
from equilibria.stability.examination import Examination, Finding, Severity
from equilibria.stability.findings_backward import backward, error, gradient

__all__ = ["APART", "findings"]

APART = 1e-3
"""Relative distance from which two answers are two. The solves compared end at a relative residual
of 1e-6 in float64, so one and the same answer is met to 1e-6 / (1 - spectral radius): below 1e-3 up
to a radius of .999."""

_ORDER: tuple[Severity, ...] = ("unhealthy", "watch", "healthy")


def findings(examination: Examination) -> tuple[Finding, ...]:
    """All findings, the worst first."""
    found = (
        convergence(examination),
        cost(examination),
        contraction(examination),
        sensitivity(examination),
        uniqueness(examination),
        gradient(examination),
        backward(examination),
        error(examination),
        depth(examination),
    )
    return tuple(
        sorted((f for f in found if f is not None), key=lambda f: _ORDER.index(f.severity))
    )


def convergence(examination: Examination) -> Finding:
    """Do the solves reach the tolerance?

    Healthy: all samples. Watch: 95 % or more, and the rest ended short of it. Unhealthy: fewer, or
    any sample that diverged or turned NaN, since that one's answer is not close to anything.
    """
    forward, n = examination.forward, examination.samples
    failed = {k: v for k, v in forward.status.items() if k != "CONVERGED" and v > 0}
    evals = forward.evals
    if not failed:
        return Finding(
            "Convergence",
            "healthy",
            f"All {n} samples reached the tolerance of {forward.rtol:g}, after {evals.mean:.1f} "
            f"evaluations on average and {evals.max:.0f} at most.",
        )
    broken = failed.keys() & {"DIVERGED", "NONFINITE"}
    severity = "watch" if sum(failed.values()) <= 0.05 and not broken else "unhealthy"
    listed = ", ".join(f"{percent(share)} {name}" for name, share in failed.items())
    worst = max(failed, key=lambda name: (name in broken, failed[name]))
    radius = examination.jacobian.spectral_radius.max
    lower = "lower the spectral radius"
    lower += f". {tame(examination, radius)}" if radius < 0.9 else ": see Contraction."
    who = f"None of the {n} samples" if unsolved(examination) else f"Not all of {n} samples"
    return Finding(
        "Convergence",
        severity,
        f"{who} reached the tolerance of {forward.rtol:g} within "
        f"{forward.max_evals} evaluations: {listed}; the largest residual is "
        f"{forward.residual.max:.1e}."
        + (
            " What is said below of z* is said of the best states found."
            if unsolved(examination)
            else ""
        ),
        {
            "MAX_EVALS": f"Raise max_evals, or {lower}",
            "STALLED": "In bfloat16 the residual cannot fall below about 2.5e-3, in float32 about "
            "3e-7: choose rtol above that. Else try Broyden, or Anderson with a longer history."
            if forward.residual.max < 5e-3
            else f"The residual wanders far above the tolerance. Try Broyden, or {lower}",
            "DIVERGED": "The layer drives its state apart. Begin with smaller weights, normalise "
            "inside the cell, or bound the weights that act on z with spectral_norm.",
            "NONFINITE": "The cell returned NaN or infinity. Look for overflow, a division or a "
            "logarithm in it, for a learning rate that is too high, and for NaN in the data.",
        }[worst],
    )


def cost(examination: Examination) -> Finding | None:
    """Do solves take more than they may?

    Watch: more than 10 % over the budget of training's controller, on average; or, where all
    samples converge, a tenth of them within 20 % of the limit, after which training that goes on
    as it does will leave some unsolved. Otherwise there is nothing to say.
    """
    forward, training = examination.forward, examination.training
    mean, budget = forward.evals.mean, None if training is None else training.budget
    if budget is not None and mean > 1.1 * budget:
        return Finding(
            "Cost",
            "watch",
            f"Solves take {mean:.1f} evaluations on average, over the budget of {budget:g} that "
            "training was to hold.",
            "The controller's factor was at its highest, or had too few steps: look for "
            "regulariser.factor in metrics.jsonl, and raise regulariser.gamma or "
            "regulariser.controller.highest; or set regulariser.controller.evals to what the "
            "accuracy needs.",
        )
    solved = forward.status.get("CONVERGED", 0) == 1
    if solved and forward.evals.p90 >= 0.8 * forward.max_evals:
        return Finding(
            "Cost",
            "watch",
            f"A tenth of the samples take {forward.evals.p90:.0f} evaluations or more, close to "
            f"the limit of {forward.max_evals}.",
            "Solves tend to lengthen as training goes on. Raise max_evals, or lower the spectral "
            "radius. " + tame(examination, examination.jacobian.spectral_radius.max),
        )
    return None


def contraction(examination: Examination) -> Finding:
    """Does the fixed point attract, and how strongly?

    rho is what the error is multiplied by in each plain iteration, in the long run: ln 10 / -ln rho
    evaluations buy a decimal digit, 22 of them at rho = .9, where we begin to say watch. From 1 on
    plain iteration leaves the fixed point and Neumann series do not converge; Anderson, Broyden and
    GMRES may still, so this is unhealthy only where such an iteration is in use. Below .02 one
    evaluation gives the answer to 2 %: the layer has no depth.
    """
    radius, share = examination.jacobian.spectral_radius, examination.jacobian.expanding
    where = "best states found" if unsolved(examination) else "solution"
    text = f"The spectral radius of the Jacobian at the {where} is {number(radius.mean)} on "
    text += f"average and {number(radius.max)} at most"
    if (ritz := examination.jacobian.ritz) is not None and math.isfinite(ritz.max):
        text += f" (as the solve itself saw it: {number(ritz.mean)} and {number(ritz.max)})"
    relies = [
        name
        for name, given in (("solver", examination.solver), ("adjoint", examination.adjoint))
        if given.startswith(("Picard", "JacobianFree", "NeumannPhantom", "Phantom"))
        or "Neumann(" in given
        or "Picard(" in given
    ]
    if not math.isfinite(radius.max):
        return Finding("Contraction", "unhealthy", f"{text}: the Jacobian is not finite.")
    if share > 0:
        return Finding(
            "Contraction",
            "unhealthy" if relies else "watch",
            f"{text}; {percent(share)} of the samples have 1 or more, where plain iteration moves "
            "away from the fixed point.",
            (
                f"The {' and the '.join(relies)} in use counts on a radius below 1: use Anderson "
                "or Broyden forward and Implicit backward. "
                if relies
                else ""
            )
            + tame(examination, radius.max),
        )
    if radius.max >= 0.9:
        return Finding(
            "Contraction",
            "watch",
            f"{text}: the fixed point attracts, but slowly. Plain iteration would need "
            f"{evaluations_a_digit(radius.max)} evaluations for a decimal digit.",
            f"Watch it from epoch to epoch: it tends to grow. {tame(examination, radius.max)} Do "
            "not cut the adjoint to a few terms.",
        )
    if unsolved(examination):
        return Finding(
            "Contraction",
            "watch",
            f"{text}: there f contracts, and yet no fixed point was found.",
            "f contracts where the solve ended, not on the way. See Convergence.",
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
        f"{text}: the fixed point attracts. Plain iteration would gain a decimal digit every "
        f"{evaluations_a_digit(radius.max)} evaluations in the worst sample.",
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
    transient = radius.max < 1
    return Finding(
        "Sensitivity",
        "watch",
        text + (", before it begins to shrink." if transient else "."),
        "Rounding and noise are amplified on the way, and early iterates are poor. Begin with "
        "smaller weights, or bound those that act on z with spectral_norm.",
    )


def uniqueness(examination: Examination) -> Finding:
    """Is there one answer, wherever the solve begins?

    Two answers count as two when they are more than 1e-3 apart, relative to their length. Watch: up
    to 5 % of the samples have more than one, or some starts led nowhere. Unhealthy: more than 5 %.
    """
    starts = examination.starts
    if not math.isfinite(starts.distance.max):
        return Finding(
            "Uniqueness",
            "unhealthy",
            f"No sample reached a fixed point again from {starts.count} other starts.",
            "See Convergence; nothing can be said about whether the answer is unique.",
        )
    if starts.apart > 0:
        return Finding(
            "Uniqueness",
            "watch" if starts.apart <= 0.05 else "unhealthy",
            f"From {starts.count} other starts, {percent(starts.apart)} of the samples reached "
            f"another answer, up to {number(starts.distance.max)} of its length away.",
            "What the network says depends on where the solve begins. Always begin alike (no warm "
            "starts, no random ones), or bound the weights that act on z with spectral_norm: "
            "a contraction has one fixed point.",
        )
    text = f"From {starts.count} other starts every sample that converged reached the same answer"
    if starts.converged < 1:
        return Finding(
            "Uniqueness",
            "watch",
            f"{text}, but {percent(1 - starts.converged)} of these solves did not converge.",
            "The layer depends on a good start. Keep the one it was trained with.",
        )
    return Finding("Uniqueness", "healthy", f"{text}, to {starts.distance.max:.0e} of its length.")


def depth(examination: Examination) -> Finding | None:
    """Is the depth used, and is all of it needed?

    Used: one evaluation alone costs 1 % of the figure or more (where nothing judges the answer:
    leaves the state 1 % or more away; nothing to say where there is no answer). Otherwise the layer
    works like an ordinary one, and is only dearer: watch. The advice names the fewest evaluations
    within half a per cent of the full solve.
    """
    points, final = examination.depth.points, examination.depth.figure
    first, metric = points[0], Metric(**examination.depth.metric)

    def cost(figure: float, end: float) -> float:
        """What a figure is worse than that of the full solve, relative to it."""
        worse = end - figure if metric.higher_is_better else figure - end
        return worse / (abs(end) or 1.0)

    if final is None or first.figure is None:
        if unsolved(examination):
            return None  # the distance from where a solve was given up says nothing
        text = f"One evaluation leaves the state {percent(first.distance)} away from the answer"
        used = not first.distance < 0.01
    else:
        text = (
            f"{metric.title} is {metric.format(first.figure)} after one evaluation and "
            f"{metric.format(final)} "
            + ("where the solver stops" if unsolved(examination) else "at the solution")
        )
        used = cost(first.figure, final) >= 0.01
    if not used:
        return Finding(
            "Depth",
            "watch",
            f"{text}: the layer hardly uses its depth.",
            "An ordinary layer would do as well here. Depth shows on harder tasks, and with a "
            "smaller cell.",
        )
    enough = [p for p in points if p.figure is not None and cost(p.figure, final or 0) <= 0.005]
    advice = ""
    if enough and enough[0].evals < examination.forward.evals.mean:
        count = enough[0].evals
        advice = f"Where time counts: {count} evaluations come within 0.5 % of a full solve."
    return Finding("Depth", "healthy", f"{text}: the depth is used.", advice)
