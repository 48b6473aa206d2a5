"""The U-Net that segmentation networks are compared with."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.models.base import ExplicitConfig, Model, Prediction
from equilibria.zoo.vision.model.batch_norm import BatchNorm2d
from equilibria.zoo.vision.model.config import VisionConfig
from equilibria.zoo.vision.model.dense_head import upsampled

__all__ = ["UNet", "UNetConfig"]


@dataclass(frozen=True, kw_only=True)
class UNetConfig(VisionConfig, ExplicitConfig):
    """The architecture of a U-Net with padded convolutions and batch normalisation.

    With the default widths, RGB images and 2 classes it has 31,037,698 parameters.

    Args:
        widths: channels at each resolution, the image's own first; each is half as high and wide as
            the one before.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "widths")
        super().__post_init__()

    @property
    @override
    def dense(self) -> bool:
        return True

    @property
    @override
    def min_size(self) -> int:
        return 2 ** (len(self.widths) - 1)

    @property
    @override
    def remedy(self) -> str:
        return f"take larger images, or fewer resolutions (widths: {self.widths})"

    @override
    def network(self) -> "UNet":
        return UNet(self)


class UNet(Model):
    """Two convolutions at each resolution on the way down, and two on the way up, with skips.

    On the way up, a 2x2 transposed convolution of stride 2 doubles height and width; where the
    image's are no multiples of the smallest resolution's, the result is interpolated to the skip's.

    papers: Ronneberger et al. 2015, fig. 1 (there without padding and batch normalisation).
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        (inputs, _, _), classes = config.required()
        self.config = config
        widths = config.widths
        self.down = nn.ModuleList(_pair(a, b) for a, b in pairwise((inputs, *widths)))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(below, above, 2, stride=2) for above, below in pairwise(widths)
        )
        self.join = nn.ModuleList(_pair(2 * above, above) for above in widths[:-1])
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(widths[0], classes, 1)

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return logits (batch, classes, height, width) of images of that height and width."""
        self.refuse_carry(carry)
        self.config.check(x)
        skips: list[Tensor] = []
        for level, pair in enumerate(self.down):
            x = pair(self.pool(x) if level else x)
            skips.append(x)
        x = skips.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            skip = skips.pop()
            x = join(torch.cat([skip, upsampled(up(x), skip.shape[2:])], 1))
        return Prediction(self.head(x), ())


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with BatchNorm and ReLU."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        conv = nn.Conv2d(width, outputs, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        layers += [conv, BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)
