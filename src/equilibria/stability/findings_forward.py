"""Findings about forward solves: whether they arrive, where, at what cost, and what stops them."""

from __future__ import annotations

import math

from equilibria.precision import too_fine
from equilibria.solve import WARNED_ERROR
from equilibria.stability.examination import (
    Examination,
    Finding,
    Summary,
    number,
    setting,
    share_converged,
    tame,
    tell_gap,
    unsolved,
)
from equilibria.stability.findings_failed import describe_plain, remedy
from equilibria.words import list_some, percent, plural

_FEW = 10
"""Evaluations after which an error has gone where the spectral radius is below .02, unless it has a
way to go."""

_NAMED = 3
"""Broken tensors that are named; the rest are counted."""


def weights(examination: Examination) -> Finding:
    """Are the weights numbers? Unhealthy where one is not: then there is nothing to examine."""
    names = list_some(examination.broken, _NAMED)
    return Finding(
        "Weights",
        "unhealthy",
        f"The weights hold NaN or infinity ({names}): the network's output means nothing, and "
        "nothing else was examined.",
        "Training broke down. Return to a checkpoint from before, lower the learning rate, clip "
        "the gradient, and look for NaN in the data.",
    )


def convergence(examination: Examination) -> Finding:
    """Do the solves reach the tolerance?

    Healthy: all samples. Watch: 95 % or more, and the rest ended short of it. Unhealthy: fewer, or
    any sample that diverged or turned NaN, since that one's answer is not close to anything.
    """
    forward, n = examination.forward, plural(examination.samples, "sample")
    evals, failed = forward.evals, {k: v for k, v in forward.status.items() if v > 0}
    reached = round(failed.pop("CONVERGED", 0.0) * examination.samples)
    said = f"{reached} of {n} reached the tolerance of {forward.rtol:g}"
    if not failed:
        said += f", after {evals.mean:.1f} evaluations on average and {evals.max:.0f} at most."
        return Finding("Convergence", "healthy", said)
    broken = failed.keys() & {"DIVERGED", "NONFINITE"}
    severity = "watch" if sum(failed.values()) <= 0.05 and not broken else "unhealthy"
    ended = ", ".join(f"{percent(share)} {name}" for name, share in failed.items())
    said += f" within {plural(forward.max_evals, 'evaluation')}: {ended}"
    nothing = failed.get("NONFINITE") == 1
    said += "; nothing else was examined." if nothing else tell_gap(forward.residual.max)
    if examination.plain is not None:
        said += f" {describe_plain(examination.plain)}"
    worst = max(failed, key=lambda name: (name in broken, failed[name]))
    return Finding("Convergence", severity, said, remedy(examination, worst))


def accuracy(examination: Examination) -> Finding | None:
    """How wrong are the states that converged?

    Healthy: the estimated error is at most 15 times the tolerance in nine of ten samples, or the
    solver limits it. Watch: more. Nothing to say where nothing is known.
    """
    forward = examination.forward
    error = forward.error
    if not math.isfinite(error.p90):
        return None
    said = (
        "The estimated error of the states that converged, relative to their length, is "
        f"{percent(error.p50)} (median) and {percent(error.p90)} (90th percentile)"
    )
    if forward.limit is not None or not forward.rtol or error.p90 <= WARNED_ERROR * forward.rtol:
        return Finding("Error of the state", "healthy", f"{said}.")
    return Finding(
        "Error of the state",
        "watch",
        f"{said}: {error.p90 / forward.rtol:.0f} times the tolerance of {forward.rtol:g}, which is "
        "one of the residual.",
        "If the cell takes a small or damped step, take the longest one that is stable, and damp "
        f"in the solver. Else limit the error, by {setting(examination, 'solver.error', 'error')}, "
        f"or lower {setting(examination, 'solver.rtol', 'rtol')}; a spectral radius nearer to 1 "
        "asks for more evaluations.",
    )


def precision(examination: Examination) -> Finding | None:
    """Could the training's precision reach its tolerance?

    Watch: solves of the last epoch ended short of a tolerance that is below their rounding. The
    doctor examines in float32, and would see nothing of it.
    """
    training = examination.training
    if training is None:
        return None
    said = too_fine(training.precision, examination.forward.rtol, training.status)
    if said is None:
        return None
    sentence, advice = said
    return Finding("Precision", "watch", f"In the last epoch of training, {sentence}", advice)


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
            "The controller's factor was at its highest, or had too few steps: look for the "
            "regulariser's factor in metrics.jsonl, and raise regularizer.gamma or "
            "regularizer.controller.highest; or set regularizer.controller.evals to what the "
            "accuracy needs.",
        )
    if share_converged(examination) == 1 and forward.evals.p90 >= 0.8 * forward.max_evals:
        return Finding(
            "Cost",
            "watch",
            f"A tenth of the samples take {forward.evals.p90:.0f} evaluations or more, close to "
            f"the limit of {forward.max_evals}.",
            "Solves tend to lengthen as training goes on. Raise "
            f"{setting(examination, 'solver.max_evals', 'max_evals')}, or lower the spectral "
            "radius. " + tame(examination, examination.jacobian.spectral_radius.max),
        )
    return None


def uniqueness(examination: Examination) -> Finding:
    """Is there one answer, wherever the solve begins?

    Two answers count as two when they are more than 1e-3 apart, relative to their length. Watch: up
    to 5 % of the samples have more than one, or some solves led nowhere. Unhealthy: more than 5 %,
    or no sample has two answers to compare. All these solves are longer than those in use, and in
    float64, so that samples may converge here that do not in use.
    """
    starts = examination.starts
    of = f"From {plural(starts.count, 'other start')}, in float64, "
    if starts.compared == 0:
        return Finding(
            "Uniqueness",
            "unhealthy",
            f"{of}no sample reached a fixed point that could be compared with its own.",
            "See Convergence; nothing can be said about whether the answer is unique.",
        )
    who = "every sample"
    if starts.compared < 1:
        who = f"the {percent(starts.compared)} of the samples that converged again"
    if starts.apart > 0:
        found = f"{percent(starts.apart)} of the samples"
        if starts.compared < 1:
            found += f" ({percent(starts.compared)} converged again)"
        return Finding(
            "Uniqueness",
            "watch" if starts.apart <= 0.05 else "unhealthy",
            f"{of}{found} reached another solution, up to {number(starts.distance.max)} times "
            "its length away: they have several fixed points.",
            "What the network says depends on where the solve begins. Always begin alike (no warm "
            "starts, no random ones), or bound the weights that act on z with spectral_norm: "
            "a contraction has one fixed point.",
        )
    text = f"{of}{who} reached the same answer, to {starts.distance.max:.0e} of its length"
    if starts.converged < 1:
        return Finding(
            "Uniqueness",
            "watch",
            f"{text}, but {percent(1 - starts.converged)} of the solves from other starts "
            "did not converge.",
            "The layer depends on a good start. Keep the one it was trained with."
            if share_converged(examination) == 1
            else "See Convergence.",
        )
    return Finding("Uniqueness", "healthy", f"{text}.")


# --- findings jacobian ----------------------------------------------------------------------------

# Findings about J = df/dz: whether the fixed point attracts, and what one evaluation amplifies.


def contraction(examination: Examination) -> Finding:
    """Does the fixed point attract, and how strongly?

    rho is what the error is multiplied by in each plain iteration, in the long run: ln 10 / -ln rho
    evaluations buy a decimal digit, 22 of them at rho = .9, where we begin to say watch. From 1 on
    plain iteration leaves the fixed point and Neumann series do not converge; Anderson, Broyden and
    GMRES may still, so this is unhealthy only where such an iteration is in use. Below .02 one
    evaluation gives the answer to 2 %: the layer has no depth, unless errors travel before they go.

    Where some samples converged, the thresholds are asked of these; the others' radii are given
    beside, since they may tell why. Where none did, there is no fixed point to be judged.
    """
    jacobian = examination.jacobian
    text = _radii(examination)
    radius = jacobian.spectral_radius if unsolved(examination) else jacobian.solved
    if not math.isfinite(radius.max):
        return Finding("Contraction", "unhealthy", f"{text}: the Jacobian is not finite.")
    if jacobian.expanding > 0:
        return _warn_expanding(examination, text)
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
            f"{_count_a_digit(radius.max)} for a decimal digit.",
            f"Watch it from epoch to epoch: it tends to grow. {tame(examination, radius.max)} Do "
            "not cut the adjoint to a few terms.",
        )
    if radius.max < 0.02 and examination.forward.evals.max > _FEW:
        return Finding(
            "Contraction",
            "healthy",
            f"{text}: the Jacobian is nilpotent, or nearly so. A signal travels through the state, "
            "and nothing is left of an error once it has passed.",
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
        f"digit with {_count_a_digit(radius.max)}.",
    )


def _radii(examination: Examination) -> str:
    """The spectral radius, and where it was measured."""
    jacobian, share = examination.jacobian, share_converged(examination)
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


def _warn_expanding(examination: Examination, text: str) -> Finding:
    """The finding where the spectral radius of some samples is 1 or more."""
    relies = [
        name
        for name, given in (("solver", examination.solver), ("adjoint", examination.adjoint))
        if given.startswith(("Picard", "JacobianFree", "NeumannPhantom", "Phantom"))
        or "Neumann(" in given
        or "Picard(" in given
    ]
    away = " from the fixed point" * (share_converged(examination) == 1)
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
    transient = radius.max < 1 and share_converged(examination) == 1
    return Finding(
        "Sensitivity",
        "watch",
        text + (", before it begins to shrink." if transient else "."),
        "Rounding and noise are amplified on the way, and early iterates are poor. Begin with "
        "smaller weights, or bound those that act on z with spectral_norm.",
    )


def _count_a_digit(radius: float) -> str:
    """Plain iterations for a decimal digit."""
    return plural(math.ceil(math.log(10) / -math.log(radius)), "evaluation")
