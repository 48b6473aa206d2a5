"""What reads the class of each pixel from the equilibrium of an MDEQ."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from equilibria.zoo.vision.model.batch_norm import BatchNorm2d

__all__ = ["AuxiliaryMaps", "DenseHead", "Resolutions", "upsampled"]

Resolutions = Literal["all", "highest"]
"""The resolutions of the state that a pixel's class is read from."""


def upsampled(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return maps (batch, ..., h, w) at another height and width, interpolated linearly."""
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    return functional.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)


class DenseHead(nn.Module):
    """Logits of each place: K2 * relu(BN(K1 * u)), with 1x1 convolutions.

    u is the highest resolution of the state alone, or all of them, each interpolated linearly to
    the highest and concatenated, as in the released models; K1 keeps its channels.

    Args:
        channels: of each resolution of the state, the highest first.
        classes: number of logits.
        resolutions: "all" or the "highest".

    papers: Bai et al. 2020, sec. 3 and appendix A.
    """

    def __init__(self, channels: Sequence[int], classes: int, resolutions: Resolutions) -> None:
        super().__init__()
        self.resolutions: Resolutions = resolutions
        width = sum(channels) if resolutions == "all" else channels[0]
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 1),
            BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, classes, 1),
        )

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes, height, width) at the highest resolution."""
        size = states[0].shape[2:]
        read = states if self.resolutions == "all" else states[:1]
        return self.layers(torch.cat([upsampled(z, size) for z in read], 1))


class AuxiliaryMaps(nn.ModuleList):
    """Logits of each place from each resolution by itself: a 1x1 convolution.

    Their losses reach each resolution directly, in training alone.

    papers: Bai 2022 (thesis), sec. 3.1 ("each resolution inducing its own loss").
    """

    def __init__(self, channels: Sequence[int], classes: int) -> None:
        super().__init__(nn.Conv2d(width, classes, 1) for width in channels)

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return logits (batch, classes, height, width) of each of the states, at its own size."""
        return tuple(head(z) for head, z in zip(self, states, strict=True))
