"""What a network for coordinates does with them first: Fourier and Gabor filters."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria.solve import without_autocast

__all__ = ["FilterKind", "FourierFilter", "GaborFilter", "Phases"]

FilterKind = Literal["fourier", "gabor"]
"""The filters of multiplicative filter networks."""


class Phases(nn.Linear):
    """w x + phi, (batch, inputs) -> (batch, width): the arguments of sines.

    They are computed outside of autocast: in 8 bits a frequency of some hundreds leaves no phase.

    Args:
        inputs: coordinates of a sample.
        width: outputs.
        scale: of the frequencies: w ~ U(-scale, scale) / sqrt(inputs), which is torch's start of a
            linear layer times `scale`; phi ~ U(-pi, pi).
    """

    def __init__(self, inputs: int, width: int, scale: float) -> None:
        super().__init__(inputs, width)
        with torch.no_grad():
            self.weight.mul_(scale)
            self.bias.uniform_(-math.pi, math.pi)

    @override
    def forward(self, input: Tensor) -> Tensor:
        with without_autocast(input.device.type):
            return super().forward(input)


class FourierFilter(nn.Module):
    """g(x) = sin(w x + phi), (batch, inputs) -> (batch, width).

    papers: Bai 2022 (thesis), eq. 8.4; Fathony et al. 2021.

    Args:
        inputs: coordinates of a sample.
        width: filters.
        scale: of the frequencies, see `Phases`.
    """

    def __init__(self, inputs: int, width: int, scale: float) -> None:
        super().__init__()
        self.phases = Phases(inputs, width, scale)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the filters at coordinates (batch, inputs)."""
        return self.phases(x).sin()


class GaborFilter(nn.Module):
    """g(x) = sin(w x + phi) exp(-gamma / 2 |x - mu|^2), (batch, inputs) -> (batch, width).

    At the start mu ~ U(-1, 1), gamma ~ Gamma(alpha, 1), and w is that of `Phases` times
    sqrt(gamma). A gamma that has become negative counts as 0.

    papers: Bai 2022 (thesis), eq. 8.4; Fathony et al. 2021.

    Args:
        inputs: coordinates of a sample.
        width: filters.
        scale: of the frequencies, see `Phases`.
        alpha: mean of gamma at the start.
    """

    def __init__(self, inputs: int, width: int, scale: float, alpha: float) -> None:
        super().__init__()
        self.phases = Phases(inputs, width, scale)
        self.mu = nn.Parameter(torch.empty(width, inputs).uniform_(-1.0, 1.0))
        mean = torch.tensor(float(alpha), device="cpu")  # torch 2.11 cannot draw them on meta
        gamma = torch.distributions.Gamma(mean, torch.ones_like(mean), validate_args=False)
        self.gamma = nn.Parameter(gamma.sample((width,)).to(self.mu))
        with torch.no_grad():
            self.phases.weight.mul_(self.gamma.sqrt().unsqueeze(1))

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the filters at coordinates (batch, inputs)."""
        with without_autocast(x.device.type):
            return self.phases(x).sin() * self._exponent(x).exp()

    def _exponent(self, x: Tensor) -> Tensor:
        """-gamma / 2 |x - mu|^2 as a product of matrices, of (x, |x|^2, 1): differences of all
        coordinates with all mu would take `inputs` times the memory."""
        gamma = self.gamma.relu()
        square = x.square().sum(1, keepdim=True)
        weight = torch.cat([gamma.unsqueeze(1) * self.mu, -0.5 * gamma.unsqueeze(1)], dim=1)
        bias = -0.5 * gamma * self.mu.square().sum(1)
        return functional.linear(torch.cat([x, square], dim=1), weight, bias)
