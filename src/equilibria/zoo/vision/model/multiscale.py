"""What multiscale networks share, whatever is read from their state: stem, cell and head."""

import abc
from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.zoo.vision.model.block import Norm
from equilibria.zoo.vision.model.cell import MultiscaleCell
from equilibria.zoo.vision.model.config import VisionConfig
from equilibria.zoo.vision.model.stem import Stem

__all__ = ["MultiscaleConfig"]


@dataclass(frozen=True, kw_only=True)
class MultiscaleConfig(VisionConfig):
    """What stem and cell of an MDEQ are.

    Args:
        channels: of each resolution of the state, the highest first; a single one makes the
            single-stream DEQ.
        expansion: width inside the cell's blocks, in units of `channels`.
        groups: of each GroupNorm; they must divide all of `channels`.
        dropout: share dropped in each block, with one mask per forward.
        halvings: how often the stem halves height and width before the highest resolution.
        projection: whether the stem ends in a 1x1 convolution, as that of all released models but
            the smallest.
        weight_norm: kernels of the blocks, and those after the fusion, are length times direction.
        norm: GroupNorm in the cell, or "none", where each place is to depend on no more than its
            surroundings.
        affine: whether the GroupNorm after the fusion has gains and shifts to learn, as in the
            released models for ImageNet.
        initial: standard deviation of the kernels of stem and cell at the start; None for torch's
            own.
        auxiliary: a linear classifier at each resolution too, for losses of its own in training;
            their weight is `task.auxiliary`.
        channels_last: keep images, states and all that the solver remembers in memory with channels
            last; None for where that is faster, on a GPU (on a CPU it takes up to 1.6 times as
            long where channels are few).
    """

    channels: tuple[int, ...] = (24, 24)
    expansion: int = 5
    groups: int = 8
    dropout: float = 0.0
    halvings: int = 0
    projection: bool = True
    weight_norm: bool = True
    norm: Norm = "group"
    affine: bool = False
    initial: float | None = 0.01
    auxiliary: bool = False
    channels_last: bool | None = None

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "channels", "expansion", "groups")
        if self.norm == "group" and any(width % self.groups for width in self.channels):
            raise ValueError(
                f"groups must divide the channels of each resolution; got {self.groups} groups of "
                f"{self.channels} channels"
            )
        check_fields(self, "[0, inf)", "halvings")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is a share and must be in [0, 1); got {self.dropout}")
        check_fields(self, "(0, inf)", "initial")
        super().__post_init__()

    @property
    @override
    def min_size(self) -> int:
        return 2 ** (self.halvings + len(self.channels) - 1)

    @property
    @override
    def remedy(self) -> str:
        return (
            f"take larger images, fewer resolutions (channels: {self.channels}) or fewer halvings "
            f"({self.halvings})"
        )

    def sizes(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return height and width of each resolution of the state, of an image of that size."""
        found: list[tuple[int, int]] = []
        for level in range(self.halvings + len(self.channels)):
            if level >= self.halvings:
                found.append((height, width))
            height, width = (height + 1) // 2, (width + 1) // 2
        return found

    def stem(self) -> Stem:
        """Return a new stem."""
        (inputs, _, _), _ = self.required()
        return Stem(
            inputs,
            self.channels[0],
            halvings=self.halvings,
            projection=self.projection,
            initial=self.initial,
        )

    def cell(self) -> MultiscaleCell:
        """Return a new cell."""
        return MultiscaleCell(
            self.channels,
            expansion=self.expansion,
            groups=self.groups,
            dropout=self.dropout,
            norm=self.norm,
            affine=self.affine,
            initial=self.initial,
            weight_normalised=self.weight_norm,
        )

    @abc.abstractmethod
    def head(self) -> nn.Module:
        """Return a new head: states at all resolutions, the highest first -> the prediction."""

    @abc.abstractmethod
    def auxiliary_heads(self) -> nn.Module | None:
        """Return new heads of single resolutions, or None where there are to be none."""
