"""Statistics of the fixed point of a wide non-linear network, from a self-consistent equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from equilibria.nn.init import Ensemble
from equilibria.theory import families
from equilibria.theory.activations import Activation, as_activation
from equilibria.theory.quadrature import REACH, cut, normal_density, piecewise, root

__all__ = ["Injection", "MeanField", "NoMeanFieldError", "mean_field"]

Injection = Literal["outside", "inside"]
"""Where the input enters: z = phi(W z) + x ("outside"), or z = phi(W z + x) ("inside")."""

LARGEST = 1e12
"""A variance above this one is called infinite."""

SCAN = 16
"""Steps in which the reaction is followed up from 0 to find its first solution."""


class NoMeanFieldError(ValueError):
    """The self-consistent equations have no solution at this V; the message says what is known."""


@dataclass(frozen=True)
class Law:
    """Distribution of a number as places and their probabilities.

    Attributes:
        values: (nodes,), float64.
        weights: (nodes,), summing to 1; those of a quadrature, so that means are exact.
    """

    values: Tensor
    weights: Tensor

    def mean(self, function: Callable[[Tensor], Tensor]) -> float:
        """Return the mean of a function of the number."""
        return float((self.weights * function(self.values)).sum())


@dataclass(frozen=True, kw_only=True)
class MeanField:
    """A wide network at its fixed point; h is W z ("outside") or W z + x ("inside").

    Attributes:
        activation: phi.
        ensemble: of W.
        V: mean square of the singular values of W.
        injection: where the input enters.
        noise: variance of the Gaussian field xi that the other units make.
        coupling: tau V chi; h = xi + coupling * z (+ x, "inside").
        response: chi = E dz/dxi.
        output: q = E z^2, in the units of z.z / N.
        input_variance: of the entries of x.
        input_mean: of the entries of x.
    """

    activation: Activation
    ensemble: Ensemble
    V: float
    injection: Injection
    noise: float
    coupling: float
    response: float
    output: float
    input_variance: float
    input_mean: float

    @property
    def centre(self) -> float:
        """Mean of the Gaussian part u of h, h - coupling * phi(h) = u."""
        return self.input_mean * (1.0 if self.injection == "inside" else self.coupling)

    @property
    def spread(self) -> float:
        """Variance of u: the field's and the input's."""
        share = 1.0 if self.injection == "inside" else self.coupling**2
        return self.noise + share * self.input_variance

    @cached_property
    def law(self) -> Law:
        """Law of h, the pre-activation of a unit."""
        return field_law(self.activation, self.centre, self.spread, self.coupling)

    @cached_property
    def mean(self) -> float:
        """E h."""
        return self.law.mean(lambda h: h)

    @cached_property
    def square(self) -> float:
        """E h^2, which h.h / N of a wide network is: sigma_h^2 of the paper."""
        return self.law.mean(torch.square)

    @property
    def variance(self) -> float:
        """E h^2 - (E h)^2."""
        return self.square - self.mean**2

    def slopes(self) -> Law:
        """Return the law of phi'(h)."""
        return Law(self.activation.slope(self.law.values), self.law.weights)

    def responses(self) -> Law:
        """Return the law of dz/dxi = phi' / (1 - coupling * phi'), of mean chi."""
        slope = self.activation.slope(self.law.values)
        return Law(slope / (1 - self.coupling * slope), self.law.weights)

    @cached_property
    def gain(self) -> float:
        """How much of a small random perturbation of all units comes back: S E (dz/dxi)^2.

        At 1 the equations lose their meaning: fixed points near each other become as many as one
        likes. For "gaussian" and "orthogonal" it is r^2 of Theorem 3.2, for "goe" it reaches 1
        together with the spectral radius, for "antisymmetric" it stays below 1 at any V.
        """
        S = families.carried(self.ensemble, self.V, self.response**2)
        return S * self.responses().mean(torch.square)


def field_law(
    activation: Activation,
    mean: float,
    variance: float,
    coupling: float,
    *,
    coarse: bool = False,
) -> Law:
    """Return the law of h where h - coupling * phi(h) = u, u ~ N(mean, variance).

    The left side ascends, so the density of h is that of u there times 1 - coupling * phi'(h);
    nodes stand in h, where the kinks are: some 1,400, or 350 and six digits if `coarse`.
    """
    if variance <= 0:
        value = _solve(activation, mean, coupling)
        point = torch.tensor([value], dtype=torch.float64)
        return Law(point, torch.ones_like(point))
    reach = REACH * math.sqrt(variance)
    low = _solve(activation, mean - reach, coupling)
    high = _solve(activation, mean + reach, coupling)
    if coarse:
        nodes, weights = piecewise(cut(low, high, activation.kinks, 20, 1.0), order=8)
    else:
        nodes, weights = piecewise(cut(low, high, activation.kinks))
    if coupling == 0:
        return Law(nodes, weights * normal_density(nodes, mean, variance))
    u = nodes - coupling * activation(nodes)
    stretch = 1 - coupling * activation.slope(nodes)
    return Law(nodes, weights * stretch * normal_density(u, mean, variance))


def _solve(activation: Activation, u: float, coupling: float) -> float:
    """The h with h - coupling * phi(h) = u."""
    if coupling == 0:
        return u

    def above(h: float) -> float:
        return h - coupling * float(activation(torch.tensor(h, dtype=torch.float64))) - u

    low, high, step = u, u, 1.0
    while above(low) > 0:
        low, step = low - step, 2 * step
    step = 1.0
    while above(high) < 0:
        high, step = high + step, 2 * step
    return root(above, low, high)


def mean_field(
    activation: str | Activation | Callable[[Tensor], Tensor],
    ensemble: Ensemble,
    V: float,
    *,
    input_variance: float = 1.0,
    input_mean: float = 0.0,
    injection: Injection = "outside",
    reaction: bool = True,
) -> MeanField:
    """Solve for the statistics of h* and z* of a wide network, z = phi(W z) + x.

    For "gaussian" and "orthogonal" (Theorem 3.1), h is Gaussian with
    E h^2 = V (E phi(h)^2 + 2 mean(x) E phi(h) + E x^2) where the input enters outside,
    Var h = V E phi(h)^2 + Var x, E h = mean(x) where it enters inside.

    For "goe" the theorem fails, since what a unit sends out comes back to it through the same
    weights. With the response chi = E dz/dxi of a unit to a field (cavity method),
    h = xi + V chi z (+ x inside), xi ~ N(0, V E z^2), chi = E phi'(h) / (1 - V chi phi'(h));
    the reaction has the other sign for "antisymmetric"; for "normal" see `families.carried`.

    Args:
        activation: phi, a name in `ACTIVATIONS` or a function.
        ensemble: of W.
        V: mean square of the singular values of W, the square of `scale`.
        input_variance: of the entries of x, which are Gaussian where the injection is "inside",
            and for "goe" and "antisymmetric"; of any law else.
        input_mean: of the entries of x.
        injection: where the input enters.
        reaction: False applies Theorem 3.1 to every ensemble, as figures 2 to 4 of the paper do.

    Returns:
        The solution that is reached from small V; beyond `gain` 1 it describes no fixed point, for
        "gaussian" and "orthogonal" still the state that plain iteration wanders through.

    Raises:
        NoMeanFieldError: a ValueError. The variance is infinite (relu at V >= 2), or the reaction
            of symmetric weights has no solution: a unit would hold itself in place.
        ValueError: no such ensemble, activation or injection, or a negative variance.

    papers: Agarwala and Schoenholz 2022, Theorem 3.1, eq. 25 (where V multiplies all terms).
    """
    families.check(ensemble, V)
    if injection not in get_args(Injection):
        raise ValueError(f"injection must be 'outside' or 'inside', got '{injection}'")
    if not (math.isfinite(input_variance) and input_variance >= 0 and math.isfinite(input_mean)):
        raise ValueError(
            f"the input's variance must be finite and >= 0 and its mean finite, got "
            f"{input_variance} and {input_mean}"
        )
    phi = as_activation(activation)
    equations = _Equations(
        phi,
        ensemble if reaction or ensemble != "normal" else "gaussian",
        V,
        injection,
        input_variance,
        input_mean,
    )
    tau = families.reaction(ensemble) if reaction else 0
    coupling = equations.coupling(tau) if tau and V > 0 else 0.0
    noise = equations.noise(coupling)
    response, output = equations.averages(noise, coupling)
    return MeanField(
        activation=phi,
        ensemble=ensemble,
        V=V,
        injection=injection,
        noise=noise,
        coupling=coupling,
        response=response,
        output=output,
        input_variance=input_variance,
        input_mean=input_mean,
    )


@dataclass(frozen=True)
class _Equations:
    """Two unknowns: the field's variance for a given coupling, and the coupling."""

    phi: Activation
    ensemble: Ensemble
    V: float
    injection: Injection
    x_variance: float
    x_mean: float

    def averages(self, noise: float, coupling: float) -> tuple[float, float]:
        """The response chi and q = E z^2 where the field has this variance."""
        inside = self.injection == "inside"
        centre = self.x_mean * (1.0 if inside else coupling)
        spread = noise + self.x_variance * (1.0 if inside else coupling**2)
        x_square = self.x_variance + self.x_mean**2
        if coupling == 0:
            found = self.phi.moments(centre, spread)
            outside = 0.0 if inside else 2 * self.x_mean * found.mean + x_square
            return found.slope, found.square + outside
        law = field_law(self.phi, centre, spread, coupling)
        h, weights = law.values, law.weights
        value, slope = self.phi(h), self.phi.slope(h)
        response = float((weights * slope / (1 - coupling * slope)).sum())
        output = float((weights * value**2).sum())
        if not inside:
            # x is part of u, the Gaussian side of h: E[x | u] is linear in u.
            u = h - coupling * value
            share = coupling * self.x_variance / spread if spread > 0 else 0.0
            expected = self.x_mean + share * (u - centre)
            output += 2 * float((weights * value * expected).sum()) + x_square
        return response, output

    def noise(self, coupling: float) -> float:
        """The variance v of the field with v = S(chi^2) q."""
        if self.V == 0:
            return 0.0

        def missing(v: float) -> float:
            response, output = self.averages(v, coupling)
            return families.carried(self.ensemble, self.V, response**2) * output - v

        low, at_low = 0.0, missing(0.0)
        if at_low <= 0:  # without input 0 is a solution, and a larger one may be
            low = 1e-10
            at_low = missing(low)
            if at_low <= 0:
                return 0.0
        high = max(1.0, 2 * at_low)
        while (at_high := missing(high)) > 0:
            low, at_low, high = high, at_high, 4 * high
            if high > LARGEST:
                raise NoMeanFieldError(
                    f"the variance of h is infinite for {self.phi.name} at V = {self.V:g}, "
                    f"ensemble '{self.ensemble}': a smaller V has a finite one"
                )
        return root(missing, low, high, ends=(at_low, at_high))

    def coupling(self, tau: int) -> float:
        """The first c from 0 on with c = tau V chi."""

        def missing(c: float) -> float:
            return tau * self.V * self.averages(self.noise(c), c)[0] - c

        # Beyond these ends h - c phi(h) descends somewhere: h would have several values.
        steepest, flattest = self.phi.steepest, self.phi.flattest
        if tau > 0:
            end = 1 / steepest if steepest > 0 else math.inf
            limit = min(end, self.V * max(steepest, 0.0) * 1e3 + 1.0) * (1 - 1e-9)
        else:
            end = 1 / flattest if flattest < 0 else -math.inf
            limit = max(end * (1 - 1e-9), -self.V * max(steepest, 0.0) - 1e-12)
        low, at_low = 0.0, missing(0.0)
        if at_low == 0:
            return 0.0
        nearest = low
        for step in range(1, SCAN + 1):
            high = limit * step / SCAN
            at_high = missing(high)
            if at_low * at_high <= 0:
                return root(missing, low, high, ends=(at_low, at_high), tolerance=1e-12)
            if abs(at_high) < abs(at_low):
                nearest = high
            low, at_low = high, at_high
        # Two solutions may lie within a step.
        width = abs(limit) / SCAN
        for c in torch.linspace(nearest - width, nearest + width, 33, dtype=torch.float64).clamp(
            min(0.0, limit), max(0.0, limit)
        ):
            value = missing(float(c))
            if value * missing(0.0) <= 0:
                return root(missing, 0.0, float(c))
        raise NoMeanFieldError(
            f"no solution for {self.phi.name} at V = {self.V:g}, ensemble '{self.ensemble}': what "
            "comes back to a unit of its own output would hold it in place, and the network has "
            "many fixed points; a smaller V has one"
        )
