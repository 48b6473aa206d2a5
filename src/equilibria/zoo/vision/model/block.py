"""The residual block that an MDEQ has at each resolution."""

from typing import Literal

from torch import Tensor, nn

from equilibria.nn import VariationalDropout

__all__ = ["Norm", "ResidualBlock", "normalised"]

Norm = Literal["group", "none"]
"""What follows each convolution of an MDEQ's cell."""


def normalised(norm: Norm, groups: int, channels: int, affine: bool = True) -> nn.Module:
    """Return GroupNorm, or the identity where the cell is to have none."""
    return nn.GroupNorm(groups, channels, affine=affine) if norm == "group" else nn.Identity()


class ResidualBlock(nn.Module):
    """z+ = GN(relu(z^ + z)) with z~ = GN(K1 * z) and z^ = GN(K2 * relu(z~) + x).

    The convolutions are 3x3; the inner one is `expansion` times as wide as the state, which is
    where a model gets its capacity. Dropout with one mask per forward follows the second.

    Args:
        channels: of the state, (batch, channels, height, width).
        expansion: width inside the block, in units of `channels`.
        groups: of each GroupNorm.
        dropout: share of the second convolution's output that is dropped.
        norm: GroupNorm, or none.

    papers: Bai et al. 2020, sec. 3; Bai 2022 (thesis), eq. 3.1.
    """

    def __init__(
        self, channels: int, *, expansion: int, groups: int, dropout: float, norm: Norm
    ) -> None:
        super().__init__()
        inner = expansion * channels
        self.conv1 = nn.Conv2d(channels, inner, 3, padding=1, bias=False)
        self.norm1 = normalised(norm, groups, inner)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(inner, channels, 3, padding=1, bias=False)
        self.dropout = VariationalDropout(dropout)
        self.norm2 = normalised(norm, groups, channels)
        self.relu2 = nn.ReLU()
        self.norm3 = normalised(norm, groups, channels)

    def forward(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        """Return z+ of the state `z`, with an injection `x` of its shape where there is one."""
        inside = self.dropout(self.conv2(self.relu1(self.norm1(self.conv1(z)))))
        if x is not None:
            inside = inside + x
        return self.norm3(self.relu2(self.norm2(inside) + z))
