"""What reads classes from the equilibrium of an MDEQ."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from equilibria.checks import check_within
from equilibria.zoo.vision.model.batch_norm import BatchNorm2d

__all__ = ["EXPANSION", "AuxiliaryHeads", "Bottleneck", "ClassificationHead", "check_bottlenecks"]

EXPANSION = 4
"""Channels that a bottleneck gives out, in units of those inside it."""


class Bottleneck(nn.Module):
    """relu(S(z) + K3 * relu(K2 * relu(K1 * z))): 1x1, 3x3 and 1x1 convolutions with BatchNorm.

    S is a 1x1 convolution with BatchNorm. The other norms have nothing to learn.

    Args:
        inputs: channels of z.
        inner: channels inside; `EXPANSION` times as many come out.

    papers: He et al. 2016; Bai et al. 2020, appendix A.
    """

    def __init__(self, inputs: int, inner: int) -> None:
        super().__init__()
        outputs = EXPANSION * inner
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            BatchNorm2d(inner, affine=False),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, padding=1, bias=False),
            BatchNorm2d(inner, affine=False),
            nn.ReLU(),
            nn.Conv2d(inner, outputs, 1, bias=False),
            BatchNorm2d(outputs, affine=False),
        )
        self.shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, bias=False), BatchNorm2d(outputs)
        )
        self.relu = nn.ReLU()

    def forward(self, z: Tensor) -> Tensor:
        return self.relu(self.body(z) + self.shortcut(z))


class ClassificationHead(nn.Module):
    """Logits from all resolutions: y_1 = B_1(z_1), y_i = B_i(z_i) + D_i(y_(i-1)), W pool(F(y_n)).

    B_i is a bottleneck, D_i a 3x3 convolution of stride 2 and F a 1x1 one, both with BatchNorm and
    ReLU; pool is the mean over all places.

    Args:
        channels: of each resolution of the state, the highest first.
        inner: channels inside the bottleneck of each.
        final: channels that are pooled.
        classes: number of logits.

    papers: Bai et al. 2020, sec. 3 and appendix A.
    """

    def __init__(
        self, channels: Sequence[int], inner: Sequence[int], *, final: int, classes: int
    ) -> None:
        super().__init__()
        outputs = [EXPANSION * width for width in inner]
        self.bottlenecks = nn.ModuleList(map(Bottleneck, channels, inner))
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(above, below, 3, stride=2, padding=1), BatchNorm2d(below), nn.ReLU()
            )
            for above, below in pairwise(outputs)
        )
        self.last = nn.Sequential(nn.Conv2d(outputs[-1], final, 1), BatchNorm2d(final), nn.ReLU())
        self.classifier = nn.Linear(final, classes)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes) of the state at all resolutions, the highest first."""
        y = self.bottlenecks[0](states[0])
        below = zip(self.bottlenecks[1:], self.down, states[1:], strict=True)
        for bottleneck, down, state in below:
            y = bottleneck(state) + down(y)
        return self.classifier(self.last(y).mean((2, 3)))


class AuxiliaryHeads(nn.ModuleList):
    """A linear classifier of the mean over all places, for each resolution by itself.

    Their losses reach each resolution directly, in training alone.

    papers: Bai 2022 (thesis), sec. 3.1 ("each resolution inducing its own loss") and 3.2.
    """

    def __init__(self, channels: Sequence[int], classes: int) -> None:
        super().__init__(nn.Linear(width, classes) for width in channels)

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return logits (batch, classes) of each of the states (batch, channels, height, width)."""
        return tuple(head(z.mean((2, 3))) for head, z in zip(self, states, strict=True))


def check_bottlenecks(channels: tuple[int, ...], inner: tuple[int, ...], final: int) -> None:
    """Refuse what a `ClassificationHead` cannot be made of.

    Raises:
        ValueError: a number is not positive, or there is not one for each resolution.
    """
    check_within("(0, inf)", channels=channels, head_channels=inner, final=final)
    if len(channels) != len(inner):
        raise ValueError(
            f"channels and head_channels have a number for each resolution; got {len(channels)} "
            f"and {len(inner)}: {channels} and {inner}"
        )
