"""Words that several findings share: what was solved, advice, and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from equilibria.stability.examination import Examination

FLOOR = {"bf16": 2.5e-3, "fp16": 3e-4}
"""The relative residual below which a solve in this precision hardly gets: the rounding of f."""

_DTYPE = {"bf16": "bfloat16", "fp16": "float16"}


def tame(examination: Examination, radius: float) -> str:
    """What makes a layer contract more, as its training can do it.

    The papers' gamma lie between .5 and 4. A radius of 1 or more asks for twice the penalty, one
    below for half as much again.
    """
    training = examination.training
    if training is None or training.gamma == 0:
        return (
            "To lower it, add eq.stability.jacobian_penalty(sol) to the loss with a weight between "
            "0.5 and 4 (in a recipe, regulariser: {name: JacobianPenalty, gamma: 1, probability: "
            "0.4}); or begin with smaller weights, or bound those that act on z with spectral_norm."
        )
    factor = 2.0 if not radius < 1 else 1.5
    change = f"regulariser.gamma from {training.gamma:g} to {factor * training.gamma:g}"
    if training.probability <= 0.5:
        change += (
            f" (regulariser.final_gamma where it is set), or its probability from "
            f"{training.probability:g} to {2 * training.probability:g}"
        )
    return f"To lower it, raise {change}, and watch what that costs in accuracy."


def too_fine(
    precision: str, rtol: float, status: Mapping[str, float] | None
) -> tuple[str, str] | None:
    """What happened to solves whose precision cannot reach their tolerance, and what to do.

    Args:
        precision: as a recipe has it: float32, bf16 or fp16.
        rtol: relative tolerance of the solver.
        status: share of each status among the solves; None for no solves.

    Returns:
        Two sentences; None where the solves arrived, or did not for another reason.
    """
    status, floor = status or {}, FLOOR.get(precision, 0.0)
    short = status.get("STALLED", 0.0) + status.get("MAX_EVALS", 0.0)
    if not short or rtol >= floor:
        return None
    return (
        f"{percent(short)} of the solves in {_DTYPE[precision]} ended short of the tolerance of "
        f"{rtol:g}: rounding leaves a relative residual of about {floor:g}.",
        f"Set solver.rtol, and rtol of the adjoint's solver, to {2 * floor:g} or more, or "
        "precision to float32.",
    )


def converged(examination: Examination) -> float:
    """The share of samples whose solve converged: what is said of solutions is said of these."""
    return examination.forward.status.get("CONVERGED", 0.0)


def unsolved(examination: Examination) -> bool:
    """Did no sample reach a fixed point? Then there is nothing to be said of one."""
    return converged(examination) == 0


def percent(share: float) -> str:
    """A share as a percentage of three digits."""
    if 0 < share < 1e-5:
        return "less than 0.001 %"
    return f"{100 * share:.3g} %"


def number(value: float) -> str:
    """Two decimals, or two digits of what is below 0.1."""
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def evaluations(count: int) -> str:
    """How many evaluations: "1 evaluation", "2 evaluations"."""
    return f"{count} evaluation" + "s" * (count != 1)


def one_digit(tolerance: float) -> str:
    """One digit, downward: 3e-4."""
    power = math.floor(math.log10(tolerance))
    return f"{math.floor(tolerance / 10.0**power)}e{power}"


def evaluations_a_digit(radius: float) -> str:
    """Plain iterations for a decimal digit."""
    return evaluations(math.ceil(math.log(10) / -math.log(radius)))
