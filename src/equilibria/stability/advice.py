"""Words that several findings share: what was solved, advice, and numbers as text."""

from __future__ import annotations

import math

from equilibria.stability.examination import Examination
from equilibria.words import plural


def tame(examination: Examination, radius: float) -> str:
    """What makes a layer contract more, as its training can do it.

    The papers' gamma lie between .5 and 4. A radius of 1 or more asks for twice the penalty, one
    below for half as much again.
    """
    training = examination.training
    if training is None or training.gamma == 0:
        penalty = (
            "add eq.stability.jacobian_penalty(sol) to the loss with a weight between 0.5 and 4"
            if training is None
            else "train with regulariser.name: JacobianPenalty, regulariser.gamma: 1 and "
            "regulariser.probability: 0.4"
        )
        return (
            f"To lower it, {penalty}; or begin with smaller weights, or bound those that act on z "
            "with spectral_norm."
        )
    factor = 2.0 if not radius < 1 else 1.5
    change = f"regulariser.gamma from {training.gamma:g} to {factor * training.gamma:g}"
    if training.probability <= 0.5:
        change += (
            f" (regulariser.final_gamma where it is set), or regulariser.probability from "
            f"{training.probability:g} to {2 * training.probability:g}"
        )
    return f"To lower it, raise {change}, and watch what that costs in accuracy."


def setting(examination: Examination, recipe: str, words: str) -> str:
    """What a setting is called: its key in the recipe of a run, or words for a layer in Python."""
    return words if examination.training is None else recipe


def describe_vanished(norm: float) -> str:
    """A sentence about a loss whose gradient has vanished, and what was differentiated instead."""
    return (
        f"The gradient of the loss has vanished (its norm at the solution is {norm:.1e}): on these "
        "samples there is nothing left to learn, and what follows is of a random projection of the "
        "output."
    )


def converged(examination: Examination) -> float:
    """The share of samples whose solve converged: what is said of solutions is said of these."""
    return examination.forward.status.get("CONVERGED", 0.0)


def unsolved(examination: Examination) -> bool:
    """Did no sample reach a fixed point? Then there is nothing to be said of one."""
    return converged(examination) == 0


def number(value: float) -> str:
    """Two decimals, or two digits of what is below 0.1."""
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def left(residual: float) -> str:
    """The end of a sentence about solves that did not converge: how far they were from it."""
    return f"; the largest residual is {residual:.1e}." if math.isfinite(residual) else "."


def one_digit(tolerance: float) -> str:
    """One digit, downward: 3e-4."""
    power = math.floor(math.log10(tolerance))
    return f"{math.floor(tolerance / 10.0**power)}e{power}"


def evaluations_a_digit(radius: float) -> str:
    """Plain iterations for a decimal digit."""
    return plural(math.ceil(math.log(10) / -math.log(radius)), "evaluation")
