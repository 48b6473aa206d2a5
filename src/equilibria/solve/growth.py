"""Tells a residual that has fallen from one that is small only beside a state that has grown.

z <- z + 1 meets any relative tolerance once z is large. So where f(z) has outgrown its start,

    ||f(z)|| > GROWTH S,  S = max(||f(z_0)||, ||f(z_0) - z_0||),

the residual itself must have fallen below atol + SHARE S. What f(z) is rounded by counts as well:
far out z + 1 is z. A map whose residual is nowhere below max(SHARE, GROWTH rtol) S is never taken
for solved, whatever a solver does on its way. The largest residual on the way in place of S would
serve starts near an unstable fixed point better, whose residuals grow before they fall, but an
excursion far out makes it as large as you please.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH = 4.0
SHARE = 0.03


def ceiling(start: Tensor) -> Tensor:
    """The length above which ||f(z)|| has outgrown S = `start`."""
    return GROWTH * start


def grown(scale: Tensor, start: Tensor) -> Tensor:
    """Has ||f(z)|| = `scale` outgrown S = `start`?"""
    return scale > ceiling(start)


def allowed(scale: Tensor, start: Tensor, absolute: Tensor | float) -> Tensor:
    """The largest ||f(z) - z|| that has fallen enough where f(z) has grown: below zero where
    rounding leaves nothing to be told.

    Args:
        scale: ||f(z)||.
        start: S.
        absolute: the absolute tolerance, in the same norm.
    """
    return absolute + SHARE * start - _rounding(scale)


def left(size: Tensor, scale: Tensor, start: Tensor, absolute: Tensor | float) -> Tensor:
    """||f(z) - z|| = `size` over what is allowed, both with their rounding: at 1 it has fallen."""
    return (size + _rounding(scale)) / (absolute + SHARE * start)


def _rounding(scale: Tensor) -> Tensor:
    return torch.finfo(scale.dtype).eps * scale
