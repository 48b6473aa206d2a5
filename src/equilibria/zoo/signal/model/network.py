"""Networks of coordinates: one whose layer is iterated to equilibrium, and that layer at zero."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria.nn import DEQ, spectral_norm
from equilibria.run.models.base import EquilibriumModel, Model, Prediction
from equilibria.solve import private, without_autocast

if TYPE_CHECKING:
    from equilibria.zoo.signal.model.configs import (
        ExplicitRepresentationConfig,
        ImplicitRepresentationConfig,
        RepresentationConfig,
        SIRENConfig,
    )


# --- filters --------------------------------------------------------------------------------------

# What a network for coordinates does with them first: Fourier and Gabor filters.


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


# --- cells ----------------------------------------------------------------------------------------

# f of (Implicit)^2 networks, and what of it depends on the coordinates alone.


class Injection(nn.Module):
    """What f takes of the coordinates, computed once a solve: a tensor (batch, width) that is added
    to the state, then one for each layer.

    Args:
        first: coordinates -> what is added to the state.
        layers: coordinates -> what each layer takes, in order.

    papers: Bai 2022 (thesis), eq. 8.5 and 8.6; scales as in the released code.
    """

    def __init__(self, first: nn.Module, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.first = first
        self.layers = nn.ModuleList(layers)

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the operands of a `RepresentationCell` at coordinates (batch, inputs)."""
        return (self.first(x), *(layer(x) for layer in self.layers))


class RepresentationCell(nn.Module, abc.ABC):
    """f(z; x) of `layers` layers, each with a square weight, on states (batch, width).

    Args:
        width: entries of the state of a coordinate.
        layers: of f.
        bound: largest norm of each weight, or None. Below 1 f is a contraction, for sines and both
            filters are at most 1: there is one fixed point, and each start leads to it.
    """

    def __init__(self, width: int, layers: int, bound: float | None) -> None:
        super().__init__()
        square = [nn.Linear(width, width) for _ in range(layers)]
        for layer in square:
            # torch's own start is the same, by way of a gain
            nn.init.uniform_(layer.weight, -1 / math.sqrt(width), 1 / math.sqrt(width))
        self.layers = nn.ModuleList(square)
        if bound is not None:
            spectral_norm(self.layers, bound)

    @override
    def forward(self, z: Tensor, first: Tensor, *operands: Tensor) -> Tensor:
        """Evaluate f once.

        Args:
            z: states, (batch, width).
            first: what is added to the state.
            operands: what each layer takes of the coordinates.
        """
        h = z + first
        for layer, operand in zip(self.layers, operands, strict=True):
            h = self.apply_layer(layer(h), operand)
        return h

    @abc.abstractmethod
    def apply_layer(self, h: Tensor, operand: Tensor) -> Tensor:
        """Return a layer's output for h = W z + b, (batch, width)."""


class MultiplicativeCell(RepresentationCell):
    """f(z; x) = (W (z + g(x)) + b) o g'(x), with filters g; affine in z.

    With L layers h <- (W_i h + b_i) o g_i(x), from h = z + g_0(x).

    papers: Bai 2022 (thesis), eq. 8.6.
    """

    @override
    def apply_layer(self, h: Tensor, operand: Tensor) -> Tensor:
        return h * operand


class SineCell(RepresentationCell):
    """f(z; x) = sin(W (z + sin(V x + c)) + b + U x + phi).

    With L layers h <- sin(W_i h + b_i + U_i x + phi_i), from h = z + sin(V x + c). The two
    constants of a layer are kept apart, as in the released code: that of the sum starts as
    U(-pi, pi), wide, and that of W as torch's.

    papers: Bai 2022 (thesis), eq. 8.5.
    """

    @override
    def apply_layer(self, h: Tensor, operand: Tensor) -> Tensor:
        return (h + operand).sin()


# --- network --------------------------------------------------------------------------------------


class Representation(EquilibriumModel):
    """Phi(x) = W' z* + b', z* = f(z*; x): a signal as a function of its coordinates.

    Every coordinate is a sample of the batch, with a solve of its own: (batch, inputs) in [-1, 1]
    -> (batch, outputs). What f takes of the coordinates is computed once a solve.

    papers: Bai 2022 (thesis), eq. 8.7.

    Example:
        >>> model = eq.models.create("imfn", width=128, scale=64)
        >>> grey = model(coordinates).output
    """

    def __init__(self, config: ImplicitRepresentationConfig, **layer: Any) -> None:
        super().__init__()
        self.config = config
        self.injection = config.injection()
        self.deq = DEQ(config.cell(), **layer)
        self.head = nn.Linear(config.width, config.require("outputs"))

    @override
    def inject(self, x: Any) -> tuple[Tensor, ...]:
        """Return the operands of the cell at coordinates (batch, inputs).

        Raises:
            TypeError, ValueError: they are no coordinates; see `check_coordinates`.
        """
        return self.injection(check_coordinates(self.config, x, self.head.weight))

    @override
    def readout(self, z: Tensor) -> Tensor:
        """Return the signal (batch, outputs) at states (batch, width)."""
        return self.head(z)


class ExplicitRepresentation(Model):
    """Phi(x) = W' f(0; x) + b': the layers of a `Representation`, evaluated once.

    With filters it is a multiplicative filter network of `layers` + 1 filters (eq. 8.3), with sines
    the SIREN with input injection.

    papers: Bai 2022 (thesis), eq. 8.3 and Fig. 8.2.
    """

    def __init__(self, config: ExplicitRepresentationConfig) -> None:
        super().__init__()
        self.config = config
        self.injection = config.injection()
        self.cell = config.cell()
        self.head = nn.Linear(config.width, config.require("outputs"))

    @override
    def forward(self, x: Any, *, carry: Any = None) -> Prediction:
        """Return the signal (batch, outputs) at coordinates (batch, inputs).

        Raises:
            TypeError, ValueError: they are no coordinates; see `check_coordinates`.
        """
        self.refuse_carry(carry)
        operands = self.injection(check_coordinates(self.config, x, self.head.weight))
        return Prediction(self.head(self.cell(torch.zeros_like(operands[0]), *operands)), ())


def check_coordinates(config: RepresentationConfig, x: Any, weight: Tensor) -> Tensor:
    """Return coordinates, or refuse what is none.

    Args:
        config: of the network.
        x: (batch, inputs), of the weights' dtype.
        weight: one of the network's.

    Raises:
        TypeError: no tensor, or one of another dtype.
        ValueError: another shape, no coordinate, or one that is not finite.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"expected coordinates as a tensor, got {type(x).__name__}")
    if x.dtype != weight.dtype:
        raise TypeError(
            f"the coordinates are {x.dtype} and the network's weights {weight.dtype}: convert one, "
            "for example x.to(torch.float32) or model.double()"
        )
    inputs = config.require("inputs")
    if x.ndim != 2 or x.shape[1] != inputs:
        raise ValueError(
            f"expected coordinates (batch, {inputs}), got the shape {tuple(x.shape)}: each row is "
            f"a point with {inputs} {'number' if inputs == 1 else 'numbers'}; flatten a grid, "
            f"x.reshape(-1, {inputs})"
        )
    if not x.shape[0]:
        raise ValueError("the batch is empty: there is no coordinate")
    if not finite(x):
        row = int((~torch.isfinite(x)).any(1).nonzero()[0])
        raise ValueError(f"coordinate {row} of the batch is not finite: {x[row].tolist()}")
    return x


def finite(x: Tensor) -> bool:
    """Is all finite? Taken for true where numbers cannot be read: in a transform of torch.func,
    and while a program is compiled or exported."""
    if torch.compiler.is_compiling() or private.transform_active():
        return True
    return bool(torch.isfinite(x).all())


# --- siren ----------------------------------------------------------------------------------------

# SIREN, for comparison.


class SIREN(Model):
    """h_0 = sin(omega (W_0 x + b_0)), h_i = sin(omega (W_i h_(i-1) + b_i)), Phi = W h + b.

    At the start W_0 ~ U(-1, 1) / inputs, all others U(-1, 1) sqrt(6 / width) / omega. h_0 is
    computed outside of autocast, for the reason given at `Phases`.

    papers: Sitzmann et al. 2020, sec. 3.2 and the released code.
    """

    def __init__(self, config: SIRENConfig) -> None:
        super().__init__()
        self.config = config
        inputs = config.require("inputs")
        widths = (inputs, *(config.width for _ in range(config.hidden + 1)))
        sines = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.head = nn.Linear(config.width, config.require("outputs"))
        limit = math.sqrt(6 / config.width) / config.omega
        for layer in (*sines, self.head):
            nn.init.uniform_(layer.weight, -limit, limit)
        nn.init.uniform_(sines[0].weight, -1 / inputs, 1 / inputs)
        self.sines = nn.ModuleList(sines)

    @override
    def forward(self, x: Any, *, carry: Any = None) -> Prediction:
        """Return the signal (batch, outputs) at coordinates (batch, inputs).

        Raises:
            TypeError, ValueError: they are no coordinates; see `check_coordinates`.
        """
        self.refuse_carry(carry)
        h = check_coordinates(self.config, x, self.head.weight)
        first, *others = self.sines
        with without_autocast(h.device.type):
            h = (self.config.omega * first(h)).sin()
        for layer in others:
            h = (self.config.omega * layer(h)).sin()
        return Prediction(self.head(h), ())
