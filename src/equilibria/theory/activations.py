"""Activations and their Gaussian moments: in closed form where there is one, else by quadrature."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equilibria.theory.quadrature import gaussian_rule
from equilibria.words import nearest


class Moments(NamedTuple):
    """Means over h ~ N(mean, variance).

    Attributes:
        mean: E phi(h).
        square: E phi(h)^2.
        slope: E phi'(h).
        slope_square: E phi'(h)^2.
    """

    mean: float
    square: float
    slope: float
    slope_square: float


@dataclass(frozen=True)
class Activation:
    """An elementwise function phi.

    Args:
        name: in messages.
        function: phi, on a float64 tensor of any shape.
        derivative: phi'; None for autograd's.
        kinks: places where phi' jumps. Quadrature goes from one to the next: a kink that is left
            out costs some five digits.
        closed: E phi, E phi^2, E phi', E phi'^2 from the mean and the variance of h, where there
            is a formula.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor] | None = None
    kinks: tuple[float, ...] = ()
    closed: Callable[[float, float], Moments] | None = None

    def __call__(self, h: Tensor) -> Tensor:
        """Return phi(h); h stays as it is, in place though phi may work."""
        return self.function(h.clone())

    def slope(self, h: Tensor) -> Tensor:
        """Return phi'(h), of the shape of h.

        Raises:
            ValueError: autograd finds no derivative, and phi is not a constant.
        """
        if self.derivative is not None:
            return self.derivative(h)
        # Whatever mode the caller is in; and a copy, since tensors of inference mode keep no graph.
        with torch.inference_mode(False), torch.enable_grad():
            at = h.clone().detach().requires_grad_()
            out = self(at)
            if out.requires_grad:
                return torch.autograd.grad(out.sum(), at)[0]
            places = torch.cat([h.flatten(), _everywhere(self.kinks).to(h)])
            values = self(places)
            if not bool((values == values[0]).all()):
                raise ValueError(
                    f"autograd finds no derivative of {self.name}: give it as `derivative` of an "
                    "`Activation`, or a function that keeps the graph"
                )
            return torch.zeros_like(h)

    def moments(self, mean: float, variance: float) -> Moments:
        """Return E phi, E phi^2, E phi', E phi'^2 for h ~ N(mean, variance).

        Args:
            mean: of h.
            variance: of h, not negative.
        """
        if self.closed is not None and variance > 0:
            return self.closed(mean, variance)
        h, weights = gaussian_rule(mean, variance, self.kinks)
        value, slope = self(h), self.slope(h)
        return Moments(*(float((weights * f).sum()) for f in (value, value**2, slope, slope**2)))

    @cached_property
    def steepest(self) -> float:
        """The largest phi' found between -50 and 50."""
        return float(self.slope(_everywhere(self.kinks)).max())

    @cached_property
    def flattest(self) -> float:
        """The smallest phi' found between -50 and 50: negative where phi is not monotone."""
        return float(self.slope(_everywhere(self.kinks)).min())


def _everywhere(kinks: tuple[float, ...]) -> Tensor:
    """Places around 0, close together near it; none is a kink."""
    near = torch.linspace(-8, 8, 16001, dtype=torch.float64)
    far = torch.linspace(8, 50, 2001, dtype=torch.float64)
    places = torch.cat([-far, near, far])
    return places[~torch.isin(places, torch.tensor(kinks, dtype=torch.float64))]


def _cumulative(t: float) -> float:
    """P(standard Gaussian < t)."""
    return math.erfc(-t / math.sqrt(2)) / 2


def _density(t: float) -> float:
    return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def hard_tanh_moments(mean: float, variance: float) -> Moments:
    """Return the moments of phi(h) = min(max(h, -1), 1) for h ~ N(m, s^2), in closed form.

    With a = (-1 - m) / s, b = (1 - m) / s, p = P(|h| < 1) = Phi(b) - Phi(a):
    E phi' = E phi'^2 = p,
    E phi = m p - s (f(b) - f(a)) + (1 - Phi(b)) - Phi(a),
    E phi^2 = (m^2 + s^2) p + 2 m s (f(a) - f(b)) + s^2 (a f(a) - b f(b)) + 1 - p,
    Phi and f the distribution function and the density of a standard Gaussian.

    Args:
        mean: m.
        variance: s^2, positive.
    """
    s = math.sqrt(variance)
    a, b = (-1 - mean) / s, (1 - mean) / s
    inside = _cumulative(b) - _cumulative(a) if a < 0 else _cumulative(-a) - _cumulative(-b)
    down = _density(a) - _density(b)
    value = mean * inside + s * down + _cumulative(-b) - _cumulative(a)
    curve = a * _density(a) - b * _density(b)
    square = (mean**2 + variance) * inside + 2 * mean * s * down + variance * curve + 1 - inside
    return Moments(value, square, inside, inside)


def relu_moments(mean: float, variance: float) -> Moments:
    """Return the moments of phi(h) = max(h, 0) for h ~ N(m, s^2), in closed form.

    With t = m / s: E phi = m Phi(t) + s f(t), E phi^2 = (m^2 + s^2) Phi(t) + m s f(t),
    E phi' = E phi'^2 = Phi(t), Phi and f the distribution function and the density of a standard
    Gaussian.

    Args:
        mean: m.
        variance: s^2, positive.
    """
    s = math.sqrt(variance)
    t = mean / s
    above, density = _cumulative(t), _density(t)
    return Moments(
        mean * above + s * density,
        (mean**2 + variance) * above + mean * s * density,
        above,
        above,
    )


def _identity_moments(mean: float, variance: float) -> Moments:
    return Moments(mean, mean**2 + variance, 1.0, 1.0)


ACTIVATIONS: Mapping[str, Activation] = {
    each.name: each
    for each in (
        Activation("identity", lambda h: h, torch.ones_like, closed=_identity_moments),
        Activation("tanh", torch.tanh, lambda h: torch.cosh(h.clamp(-300, 300)).pow(-2)),
        Activation(
            "hard-tanh",
            lambda h: h.clamp(-1, 1),
            lambda h: (h.abs() < 1).to(h),
            kinks=(-1.0, 1.0),
            closed=hard_tanh_moments,
        ),
        Activation("relu", torch.relu, lambda h: (h > 0).to(h), kinks=(0.0,), closed=relu_moments),
        Activation("erf", torch.erf, lambda h: 2 / math.sqrt(math.pi) * h.square().neg().exp()),
        Activation("sigmoid", torch.sigmoid),
        Activation("softplus", torch.nn.functional.softplus, torch.sigmoid),
        Activation("gelu", torch.nn.functional.gelu),
        Activation("silu", torch.nn.functional.silu),
    )
}
"""Those that go by a name."""


def as_activation(activation: str | Activation | Callable[[Tensor], Tensor]) -> Activation:
    """Return an activation by its name, or one around any elementwise function.

    Args:
        activation: a name in `ACTIVATIONS`; an `Activation`; or a function of a tensor, taken as
            one without kinks. Of a module a copy is used, in float64 and in `eval` mode.

    Raises:
        ValueError: there is none of that name.
        TypeError: it is none of these.
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"there is no activation '{activation}'{nearest(activation, ACTIVATIONS)}"
            )
        return ACTIVATIONS[activation]
    if isinstance(activation, nn.Module):
        with torch.inference_mode(False):
            function = copy.deepcopy(activation).double().eval().requires_grad_(False)
        return Activation(type(activation).__name__, function)
    if callable(activation):
        return Activation(getattr(activation, "__name__", type(activation).__name__), activation)
    raise TypeError(f"activation must be a name or a function, got {type(activation).__name__}")
