"""The fusion step of an MDEQ: each resolution gets what the others have become."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from equilibria.zoo.vision.model.block import Norm, normalised

__all__ = ["Fusion"]


class Fusion(nn.Module):
    """y_j = GN(K_j * relu(z_j + sum_{i != j} R_ij(z_i))) over all resolutions, K_j 1x1.

    R_ij goes down by a 3x3 convolution of stride 2 for each level, each followed by GroupNorm and
    all but the last by ReLU; it goes up by a 1x1 convolution, GroupNorm and interpolation to the
    nearest place. Sizes need be no multiples of one another.

    Args:
        channels: of each resolution, the highest first.
        groups: of the GroupNorms in R; that after K has half as many.
        norm: GroupNorm, or none.
        affine: whether GroupNorm after K has gains and shifts to learn.

    papers: Bai et al. 2020, sec. 3 and appendix A; Bai 2022 (thesis), sec. 3.1.
    """

    def __init__(
        self, channels: Sequence[int], *, groups: int, norm: Norm, affine: bool = False
    ) -> None:
        super().__init__()
        levels = range(len(channels))
        self.resample = nn.ModuleDict(
            {
                f"{i}to{j}": (_down if j > i else _up)(channels, i, j, groups, norm)
                for j in levels
                for i in levels
                if i != j
            }
        )
        self.after = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(width, width, 1, bias=False),
                normalised(norm, max(1, groups // 2), width, affine=affine),
            )
            for width in channels
        )

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return all resolutions, each with what the others send it.

        Args:
            states: (batch, channels, height, width) of each, the highest resolution first.
        """
        fused: list[Tensor] = []
        for j, after in enumerate(self.after):
            total, size = states[j], states[j].shape[2:]
            for i, state in enumerate(states):
                if i == j:
                    continue
                sent = self.resample[f"{i}to{j}"](state)
                total = total + (sent if i < j else functional.interpolate(sent, size=size))
            fused.append(after(total))
        return tuple(fused)


def _down(channels: Sequence[int], i: int, j: int, groups: int, norm: Norm) -> nn.Module:
    """R_ij from the resolution i to a lower one, j > i."""
    steps: list[nn.Module] = []
    for level in range(i + 1, j + 1):
        width = channels[j] if level == j else channels[i]
        steps += [
            nn.Conv2d(channels[i], width, 3, stride=2, padding=1, bias=False),
            normalised(norm, groups, width),
            *([] if level == j else [nn.ReLU()]),
        ]
    return nn.Sequential(*steps)


def _up(channels: Sequence[int], i: int, j: int, groups: int, norm: Norm) -> nn.Module:
    """R_ij from the resolution i to a higher one, j < i, before the interpolation."""
    return nn.Sequential(
        nn.Conv2d(channels[i], channels[j], 1, bias=False), normalised(norm, groups, channels[j])
    )
