"""The one layer of an MDEQ: a residual block at each resolution, then fusion."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equilibria.nn import weight_norm
from equilibria.zoo.vision.model.block import Norm, ResidualBlock
from equilibria.zoo.vision.model.fusion import Fusion

__all__ = ["MultiscaleCell"]


class MultiscaleCell(nn.Module):
    """f(z; x) = fuse(block_1(z_1; x), block_2(z_2), ..., block_n(z_n)).

    The state is a tuple of tensors, one a resolution, the highest first; each is half as high and
    wide as the one before, rounded up. The input is injected at the highest alone: the others learn
    of it by the fusion. With one resolution there is nothing to fuse: f is the block, and its fixed
    point the single-stream DEQ.

    Args:
        channels: of each resolution, the highest first.
        expansion: width inside the blocks, in units of `channels`.
        groups: of each GroupNorm.
        dropout: share dropped in each block, with one mask per forward.
        norm: GroupNorm, or none.
        affine: whether the GroupNorm after the fusion has gains and shifts to learn.
        initial: standard deviation of the kernels at the start; None for torch's own.
        weight_normalised: kernels of the blocks, and those after fusion, are length times
            direction.

    papers: Bai et al. 2020, sec. 3; Bai 2022 (thesis), sec. 3.1.
    """

    def __init__(
        self,
        channels: Sequence[int],
        *,
        expansion: int,
        groups: int,
        dropout: float,
        norm: Norm,
        affine: bool,
        initial: float | None,
        weight_normalised: bool,
    ) -> None:
        super().__init__()
        self.channels = tuple(channels)
        self.blocks = nn.ModuleList(
            ResidualBlock(width, expansion=expansion, groups=groups, dropout=dropout, norm=norm)
            for width in channels
        )
        fuses = len(self.channels) > 1
        self.fusion = Fusion(channels, groups=groups, norm=norm, affine=affine) if fuses else None
        if initial is not None:
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.normal_(module.weight, std=initial)
        if weight_normalised:
            for module in (self.blocks, *(() if self.fusion is None else (self.fusion.after,))):
                weight_norm(module)

    def start(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return zeros for each resolution of the injection `x` (batch, channels, height, width).

        They lie in memory as `x` does: with channels last, that stays so through the solve.
        """
        last = x.is_contiguous(memory_format=torch.channels_last)
        order = torch.channels_last if last else torch.contiguous_format
        states: list[Tensor] = []
        height, width = x.shape[2:]
        for channels in self.channels:
            zeros = x.new_zeros(x.shape[0], channels, height, width)
            states.append(zeros.contiguous(memory_format=order))
            height, width = (height + 1) // 2, (width + 1) // 2
        return tuple(states)

    def forward(self, z: Sequence[Tensor], x: Tensor) -> tuple[Tensor, ...]:
        """Evaluate f once; `x` has the shape of the first of `z`."""
        after = [
            block(state, x if level == 0 else None)
            for level, (block, state) in enumerate(zip(self.blocks, z, strict=True))
        ]
        return tuple(after) if self.fusion is None else self.fusion(after)
