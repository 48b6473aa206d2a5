"""The residual network that equilibrium networks are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.models.base import ExplicitConfig, Model, Prediction
from equilibria.zoo.vision.model.config import VisionConfig
from equilibria.zoo.vision.model.mdeq import BatchNorm2d
from equilibria.zoo.vision.model.segmentation import upsample


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(VisionConfig, ExplicitConfig):
    """The architecture of a residual network of basic blocks.

    The defaults are ResNet-18 for small images: 11,173,962 parameters with 10 classes, and
    11,689,512 with stem "imagenet" and 1000 classes, as published. The widths of the papers'
    ResNet-18 of 170K parameters are not published; an eighth of the usual ones, (8, 16, 32, 64),
    makes 176,402. Three stages, (8, 16, 32) with blocks (2, 2, 2), make 44,370.

    Args:
        widths: channels of each stage; from the second on, a stage halves height and width.
        blocks: residual blocks of each stage, of two convolutions each.
        stem: "cifar", a 3x3 convolution at full size; or "imagenet", one of 7x7 with stride 2 and a
            max pool of stride 2.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512)
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    stem: Literal["cifar", "imagenet"] = "cifar"

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "widths", "blocks")
        if len(self.widths) != len(self.blocks):
            raise ValueError(
                "widths and blocks have a number for each stage; got "
                f"{len(self.widths)} and {len(self.blocks)}: {self.widths} and {self.blocks}"
            )
        if self.stem not in ("cifar", "imagenet"):
            raise ValueError(f"stem must be 'cifar' or 'imagenet'; got {self.stem!r}")
        super().__post_init__()

    @override
    def network(self) -> ResNet:
        return ResNet(self)


class BasicBlock(nn.Module):
    """relu(S(x) + BN(K2 * relu(BN(K1 * x)))), with 3x3 convolutions.

    S is the identity, or a 1x1 convolution with BatchNorm where the shape changes.

    Args:
        inputs: channels of x.
        outputs: channels of the result.
        stride: of K1 and S.

    papers: He et al. 2016, fig. 2 and eq. 2.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 3)
        self.norm2 = BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(_conv(inputs, outputs, 1, stride), BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return features (batch, outputs, height / stride, width / stride), rounded up."""
        inside = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inside + self.shortcut(x))


class ResNet(Model):
    """Stages of residual blocks, the mean over all places, and a linear classifier.

    papers: He et al. 2016.
    """

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        (inputs, _, _), classes = config.require_shape()
        self.config = config
        width = config.widths[0]
        large = config.stem == "imagenet"
        stem = [
            _conv(inputs, width, 7, 2) if large else _conv(inputs, width, 3),
            BatchNorm2d(width),
            nn.ReLU(),
        ]
        if large:
            stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*stem)
        body: list[nn.Module] = []
        for stage, (outputs, count) in enumerate(zip(config.widths, config.blocks, strict=True)):
            for i in range(count):
                body.append(BasicBlock(width, outputs, 2 if stage and not i else 1))
                width = outputs
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, classes)

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return logits (batch, classes) of images (batch, channels, height, width)."""
        self.refuse_carry(carry)
        self.config.check(x)
        features = self.body(self.stem(x.contiguous(memory_format=self._layout(x))))
        return Prediction(self.head(features.mean((2, 3))), ())

    def _layout(self, x: Tensor) -> torch.memory_format:
        """Return how features lie in memory: channels last, which is faster.

        Not where few channels meet many places on a CPU: oneDNN's backward of convolutions of 8
        channels writes beyond its buffers from 48 x 48 pixels on (torch 2.13).
        """
        risky = not x.is_cuda and min(self.config.widths) < 16 and x.shape[2] * x.shape[3] > 40**2
        return torch.contiguous_format if risky else torch.channels_last


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, drawn for the ReLU behind it (He et al. 2015)."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


# --- unet -----------------------------------------------------------------------------------------

# The U-Net that segmentation networks are compared with.


@dataclass(frozen=True, kw_only=True)
class UNetConfig(VisionConfig, ExplicitConfig):
    """The architecture of a U-Net with padded convolutions and batch normalisation.

    With the default widths, RGB images and 2 classes it has 31,037,698 parameters.

    Args:
        widths: channels at each resolution, the image's own first; each is half as high and wide as
            the one before.
    """

    dense = True
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "widths")
        super().__post_init__()

    @property
    @override
    def min_size(self) -> int:
        return 2 ** (len(self.widths) - 1)

    @property
    @override
    def remedy(self) -> str:
        return f"take larger images, or fewer resolutions (widths: {self.widths})"

    @override
    def network(self) -> UNet:
        return UNet(self)


class UNet(Model):
    """Two convolutions at each resolution on the way down, and two on the way up, with skips.

    On the way up, a 2x2 transposed convolution of stride 2 doubles height and width; where the
    image's are no multiples of the smallest resolution's, the result is interpolated to the skip's.

    papers: Ronneberger et al. 2015, fig. 1 (there without padding and batch normalisation).
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        (inputs, _, _), classes = config.require_shape()
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
            x = join(torch.cat([skip, upsample(up(x), skip.shape[2:])], 1))
        return Prediction(self.head(x), ())


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with BatchNorm and ReLU."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [_conv(width, outputs, 3), BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)
