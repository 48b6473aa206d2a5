"""An optical flow: how far each pixel moves, and where that is known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FlowField"]


@dataclass(frozen=True)
class FlowField:
    """How far each pixel of an image moves until the next one.

    Attributes:
        flow: float32, ``(2, height, width)``, in pixels: the pixel (x, y) is found at
            ``(x + flow[0, y, x], y + flow[1, y, x])`` in the second image. Meaningless where
            not `valid`.
        valid: bool, ``(height, width)``: where the flow is known.

    Raises:
        ValueError: If shapes or types are others, no pixel is valid, or the flow of a valid pixel
            is NaN or infinite.
    """

    flow: Tensor
    valid: Tensor

    def __post_init__(self) -> None:
        flow, valid = self.flow, self.valid
        if flow.ndim != 3 or flow.shape[0] != 2 or flow.dtype != torch.float32:
            raise ValueError(
                f"a flow of shape {tuple(flow.shape)} and {flow.dtype}: expected (2, height, "
                "width) of float32"
            )
        if valid.shape != flow.shape[1:] or valid.dtype != torch.bool:
            raise ValueError(
                f"valid has shape {tuple(valid.shape)} and {valid.dtype}: expected "
                f"{tuple(flow.shape[1:])} of bool, as the flow has pixels"
            )
        if not valid.any():
            raise ValueError("no pixel has a valid flow: there is nothing to compare with")
        broken = valid & ~flow.isfinite().all(0)
        if broken.any():
            y, x = (int(each) for each in broken.nonzero()[0])
            raise ValueError(
                f"the flow is {flow[0, y, x]:g}, {flow[1, y, x]:g} at x = {x}, y = {y} "
                f"({int(broken.sum()):,} such pixels): expected finite numbers"
            )

    @classmethod
    def dense(cls, flow: Tensor) -> FlowField:
        """A flow that is known everywhere, ``(2, height, width)``."""
        return cls(flow, torch.ones(flow.shape[1:], dtype=torch.bool, device=flow.device))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.valid.shape[0], self.valid.shape[1]
