"""What half precision leaves of a solve's tolerance."""

from __future__ import annotations

from collections.abc import Mapping

from equilibria.words import percent

FLOOR = {"bf16": 2.5e-3, "fp16": 3e-4}
"""The relative residual below which a solve in this precision hardly gets: the rounding of f."""

_DTYPE = {"bf16": "bfloat16", "fp16": "float16"}


def too_fine(
    precision: str, rtol: float, status: Mapping[str, float] | None
) -> tuple[str, str] | None:
    """What happened to solves whose precision cannot reach their tolerance, and what to do.

    Args:
        precision: as a recipe has it: float32, bf16 or fp16.
        rtol: relative tolerance of the solver; NaN where it is not known.
        status: share of each status among the solves; None for no solves.

    Returns:
        Two sentences; None where the solves arrived, or did not for another reason.
    """
    status, floor = status or {}, FLOOR.get(precision, 0.0)
    short = status.get("STALLED", 0.0) + status.get("MAX_EVALS", 0.0)
    if not short or not rtol < floor:
        return None
    return (
        f"{percent(short)} of the solves in {_DTYPE[precision]} ended short of the tolerance of "
        f"{rtol:g}: rounding leaves a relative residual of about {floor:g}.",
        f"Set solver.rtol, and rtol of the adjoint's solver, to {2 * floor:g} or more, or "
        "precision to float32.",
    )
