"""The finding about solves from other starts: is there one answer?"""

from __future__ import annotations

from equilibria.stability.advice import converged, number
from equilibria.stability.examination import Examination, Finding
from equilibria.words import percent, plural

__all__ = ["APART", "uniqueness"]

APART = 1e-3
"""Relative distance from which two answers are two. The solves compared end at a relative residual
of 1e-6 in float64, so one and the same answer is met to 1e-6 / (1 - spectral radius): below 1e-3 up
to a radius of .999."""


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
            if converged(examination) == 1
            else "See Convergence.",
        )
    return Finding("Uniqueness", "healthy", f"{text}.")
