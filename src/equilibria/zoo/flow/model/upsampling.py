"""From a flow at an eighth of the resolution to one for each pixel."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria.solve import without_autocast
from equilibria.zoo.flow.model.encoders import STRIDE

__all__ = ["BilinearUpsampling", "ConvexUpsampling", "Upsampling"]

Upsampling = Literal["convex", "bilinear"]
"""Upsampling by name; see `ConvexUpsampling` and `BilinearUpsampling`."""


class ConvexUpsampling(nn.Module):
    """Each pixel's flow is a convex combination of those of the 3x3 coarse pixels around it.

    The weights are softmax(mask / 4), with the mask of a 3x3 and a 1x1 convolution of the hidden
    state.

    Args:
        hidden: channels of the hidden state.
        width: channels between the convolutions.

    papers: Teed and Deng 2020, sec. 3.3.
    """

    def __init__(self, hidden: int, width: int = 256) -> None:
        super().__init__()
        self.mask = nn.Sequential(
            nn.Conv2d(hidden, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 9 * STRIDE**2, 1)
        )

    @override
    def forward(self, hidden: Tensor, flow: Tensor) -> Tensor:
        """Return the flow (batch, 2, 8 h, 8 w) in pixels.

        Args:
            hidden: (batch, channels, h, w).
            flow: (batch, 2, h, w), in units of 8 pixels.
        """
        batch, _, height, width = flow.shape
        mask = self.mask(hidden).to(flow.dtype).unflatten(1, (9, STRIDE, STRIDE))
        # Half precision would leave an eighth of a pixel of a motion of 20.
        with without_autocast(flow.device.type):
            weights = (0.25 * mask).softmax(1)
            around = functional.unfold(STRIDE * flow, 3, padding=1)
            around = around.unflatten(2, (height, width)).unflatten(1, (2, 9))
            fine = torch.einsum("nkabij,nckij->nciajb", weights, around)
        return fine.reshape(batch, 2, STRIDE * height, STRIDE * width)


class BilinearUpsampling(nn.Module):
    """Each pixel's flow is interpolated bilinearly, with aligned corners."""

    @override
    def forward(self, hidden: Tensor, flow: Tensor) -> Tensor:
        """Return the flow (batch, 2, 8 h, 8 w) in pixels.

        Args:
            hidden: (batch, channels, h, w), not used.
            flow: (batch, 2, h, w), in units of 8 pixels.
        """
        del hidden
        return STRIDE * functional.interpolate(
            flow, scale_factor=STRIDE, mode="bilinear", align_corners=True
        )
