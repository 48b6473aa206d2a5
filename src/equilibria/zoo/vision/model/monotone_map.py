"""The linear map of a monotone equilibrium network, and the inverse that its splitting takes."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import register_parametrization
from typing_extensions import override

__all__ = ["Coupling", "MonotoneMap", "Resolvent"]

States = Sequence[Tensor]
"""One tensor (batch, channels, height, width) for each resolution, the highest first."""


class MonotoneMap(nn.Module):
    """W = (1 - m) I - A^T A + B - B^T, so that z^T (I - W) z >= m ||z||^2 for all z.

    A and B are circular convolutions of each resolution and, between one resolution and the next,
    of stride 2; a single place and kernels of 1x1 make dense matrices of them. Their kernels are
    length times direction.

    Args:
        channels: of each resolution.
        places: height and width of each; half of those before it.
        kernel: width of the kernels, odd.
        m: how strongly monotone I - W is, positive.

    papers: Winston and Kolter 2020, proposition 1 and sec. 4; with several resolutions A and B are
    block bidiagonal, where the paper's W is block triangular.
    """

    def __init__(
        self,
        channels: Sequence[int],
        places: Sequence[tuple[int, int]],
        *,
        kernel: int,
        m: float,
    ) -> None:
        super().__init__()
        self.shapes = tuple((c, *hw) for c, hw in zip(channels, places, strict=True))
        self.m = m
        self.maps = {"a": None, "b": None}  # W is made of them: no ensemble of matrices is W
        self.a = Coupling(channels, kernel)
        self.b = Coupling(channels, kernel)

    def forward(self, z: States) -> list[Tensor]:
        """Return W z."""
        square = self.a.transposed(self.a(z))
        skew = self.b.skew(z)
        parts = zip(z, square, skew, strict=True)
        return [(1.0 - self.m) * own - root + turn for own, root, turn in parts]


class Coupling(nn.Module):
    """A block bidiagonal matrix of circular convolutions: y_i = K_i * z_i + D_i * z_(i-1).

    K_i keeps the resolution, D_i has stride 2.

    Args:
        channels: of each resolution.
        kernel: width of the kernels, odd.
    """

    def __init__(self, channels: Sequence[int], kernel: int) -> None:
        super().__init__()
        self.same = nn.ModuleList(_kernel(c, c, kernel) for c in channels)
        self.down = nn.ModuleList(
            _kernel(above, below, kernel) for above, below in pairwise(channels)
        )

    def forward(self, z: States) -> list[Tensor]:
        """Return the product with z."""
        out = [_circular(x, k) for x, k in zip(z, self._same(), strict=True)]
        for i, kernel in enumerate(self._down()):
            out[i + 1] = out[i + 1] + _circular(z[i], kernel, stride=2)
        return out

    def transposed(self, y: States) -> list[Tensor]:
        """Return the product of the transposed matrix with y."""
        out = [_circular(x, _turned(k)) for x, k in zip(y, self._same(), strict=True)]
        for i, kernel in enumerate(self._down()):
            out[i] = out[i] + _circular(_spread(y[i + 1]), _turned(kernel))
        return out

    def skew(self, z: States) -> list[Tensor]:
        """Return the product of the matrix less its transpose with z."""
        out = [_circular(x, k - _turned(k)) for x, k in zip(z, self._same(), strict=True)]
        for i, kernel in enumerate(self._down()):
            out[i + 1] = out[i + 1] + _circular(z[i], kernel, stride=2)
            out[i] = out[i] - _circular(_spread(z[i + 1]), _turned(kernel))
        return out

    def _same(self) -> list[Tensor]:
        return _weights(self.same)

    def _down(self) -> list[Tensor]:
        return _weights(self.down)


class Resolvent:
    """V = (I + alpha (I - W))^-1, by Fourier transform.

    Gathered into channels of the lowest resolution, the state is moved by W as it is itself: shifts
    of that grid commute with W. So W is a matrix for each frequency there, which is read from its
    answers to impulses and inverted. Costs one application of W to as many samples as there are
    gathered channels, and an inverse a frequency.

    Args:
        linear: W.
        alpha: step.
    """

    def __init__(self, linear: MonotoneMap, alpha: float) -> None:
        self.shapes = linear.shapes
        weight = next(linear.parameters())
        _, height, width = self.shapes[-1]
        self.factors = [shape[1] // height for shape in self.shapes]
        self.gathered = [s[0] * f**2 for s, f in zip(self.shapes, self.factors, strict=True)]
        count = sum(self.gathered)
        impulses = weight.new_zeros(count, count, height, width)
        impulses[:, :, 0, 0] = torch.eye(count, dtype=weight.dtype, device=weight.device)
        answers = self._gather(linear(self._scatter(impulses)))
        by_frequency = torch.fft.rfft2(answers).permute(2, 3, 1, 0)  # the row is the output
        identity = torch.eye(count, dtype=weight.dtype, device=weight.device)
        self.inverse = torch.linalg.inv((1.0 + alpha) * identity - alpha * by_frequency)

    def __call__(self, z: States) -> list[Tensor]:
        """Return V z."""
        size = self.shapes[-1][1:]
        columns = torch.fft.rfft2(self._gather(z)).permute(2, 3, 1, 0)
        solved = (self.inverse @ columns).permute(3, 2, 0, 1)
        return self._scatter(torch.fft.irfft2(solved, s=size))

    def _gather(self, z: States) -> Tensor:
        parts = zip(z, self.factors, strict=True)
        return torch.cat([functional.pixel_unshuffle(x, factor) for x, factor in parts], dim=1)

    def _scatter(self, joined: Tensor) -> list[Tensor]:
        parts = zip(joined.split(self.gathered, dim=1), self.factors, strict=True)
        return [functional.pixel_shuffle(x, factor) for x, factor in parts]


class _Length(nn.Module):
    """A kernel as its length times its direction."""

    def __init__(self) -> None:
        super().__init__()
        self.length = nn.Parameter(torch.ones(()))

    @override
    def forward(self, direction: Tensor) -> Tensor:
        return self.length * direction / direction.square().sum().sqrt()


def _kernel(inputs: int, outputs: int, kernel: int) -> nn.Module:
    """A module whose `weight` is a kernel of length 1, at the start."""
    conv = nn.Conv2d(inputs, outputs, kernel, bias=False)
    register_parametrization(conv, "weight", _Length())
    return conv


def _weights(modules: nn.ModuleList) -> list[Tensor]:
    return [module.weight for module in modules if isinstance(module, nn.Conv2d)]


def _circular(x: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    edge = kernel.shape[-1] // 2
    if edge:
        x = functional.pad(x, (edge, edge, edge, edge), mode="circular")
    return functional.conv2d(x, kernel, stride=stride)


def _turned(kernel: Tensor) -> Tensor:
    """The kernel of the transposed convolution."""
    return kernel.transpose(0, 1).flip(2, 3)


def _spread(x: Tensor) -> Tensor:
    """Every second place of a grid of twice the size: what a stride of 2 has for its transpose."""
    batch, channels, height, width = x.shape
    spread = functional.pad(x[:, :, :, None, :, None], (0, 1, 0, 0, 0, 1))
    return spread.reshape(batch, channels, 2 * height, 2 * width)
