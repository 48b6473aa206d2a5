"""From an image to features at an eighth of its height and width."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria.solve import without_autocast

EncoderKind = Literal["basic", "small"]
"""Residual blocks of two 3x3 convolutions, or bottlenecks of 1x1, 3x3, 1x1."""

Norm = Literal["batch", "instance", "none"]
"""Normalisation after each convolution."""

STRIDE = 8
"""Pixels of an image, each way, for one of the features."""


def stage_widths(kind: EncoderKind) -> tuple[int, int, int]:
    """Return the widths of the three stages in the source."""
    return (64, 96, 128) if kind == "basic" else (32, 64, 96)


class Encoder(nn.Module):
    """A 7x7 convolution of stride 2, three stages of two residual blocks, a 1x1 convolution.

    The second and third stage halve height and width once more. Convolutions begin with the
    normal distribution of He et al. 2015 for their outputs.

    Args:
        outputs: channels of the features.
        kind: of the residual blocks.
        norm: after each convolution but the last.
        widths: of the three stages; None for the source's.
        frozen: batch normalisation keeps the statistics it has, in training too.

    papers: Teed and Deng 2020, sec. 3.1 and appendix.
    """

    def __init__(
        self,
        outputs: int,
        *,
        kind: EncoderKind = "basic",
        norm: Norm,
        widths: tuple[int, int, int] | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        widths = stage_widths(kind) if widths is None else widths
        self.frozen = frozen
        self.stem = nn.Conv2d(3, widths[0], 7, 2, padding=3)
        self.norm = _norm(norm, widths[0])
        self.activation = nn.ReLU()
        self.stages = nn.ModuleList(
            nn.Sequential(
                EncoderBlock(before, width, stride=stride, kind=kind, norm=norm),
                EncoderBlock(width, width, stride=1, kind=kind, norm=norm),
            )
            for (before, width), stride in zip(
                pairwise((widths[0], *widths)), (1, 2, 2), strict=True
            )
        )
        self.head = nn.Conv2d(widths[-1], outputs, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @override
    def train(self, mode: bool = True) -> Encoder:
        """Set the mode; of batch normalisation only where it is not frozen."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d) and self.frozen:
                module.eval()
        return self

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return features (batch, outputs, height / 8, width / 8), rounded up.

        Args:
            x: (batch, 3, height, width), from -1 to 1.
        """
        x = self.activation(self.norm(self.stem(x)))
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


class EncoderBlock(nn.Module):
    """relu(shortcut(x) + body(x)), each convolution of the body with norm and ReLU.

    Args:
        inputs: channels.
        outputs: channels.
        stride: of the first 3x3 convolution; at 2 the shortcut is a 1x1 convolution with norm.
        kind: two 3x3 convolutions, or 1x1, 3x3, 1x1 at a quarter of the width.
        norm: after each convolution.
    """

    def __init__(
        self, inputs: int, outputs: int, *, stride: int, kind: EncoderKind, norm: Norm
    ) -> None:
        super().__init__()
        if kind == "basic":
            kernels = [(outputs, 3, stride), (outputs, 3, 1)]
        else:
            kernels = [(outputs // 4, 1, 1), (outputs // 4, 3, stride), (outputs, 1, 1)]
        layers: list[nn.Module] = []
        before = inputs
        for width, size, step in kernels:
            layers += [nn.Conv2d(before, width, size, step, padding=size // 2)]
            layers += [_norm(norm, width), nn.ReLU()]
            before = width
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride), _norm(norm, outputs)
            )
        self.activation = nn.ReLU()

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.shortcut(x) + self.body(x))


def _norm(norm: Norm, width: int) -> nn.Module:
    kinds = {"batch": nn.BatchNorm2d, "instance": nn.InstanceNorm2d, "none": nn.Identity}
    return kinds[norm](width)


# --- upsampling -----------------------------------------------------------------------------------

# From a flow at an eighth of the resolution to one for each pixel.


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
