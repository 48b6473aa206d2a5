"""Statistics of the fixed point of a wide non-linear network, from a self-consistent equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor

from equilibria.nn.init import Ensemble
from equilibria.theory import families
from equilibria.theory.activations import Activation, as_activation
from equilibria.theory.cavity import Equations, Injection, NoMeanFieldError
from equilibria.theory.field import Field, Law

__all__ = ["Injection", "MeanField", "NoMeanFieldError", "mean_field"]


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
    def field(self) -> Field:
        """What h is made of: u, and the unit's own output."""
        return Field(self.activation, self.centre, self.spread, self.coupling)

    @property
    def law(self) -> Law:
        """Law of h, the pre-activation of a unit."""
        return self.field.law

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
        return Law(self.field.response(self.law.values), self.law.weights)

    @cached_property
    def gain(self) -> float:
        """How much of a small random perturbation of all units comes back: S E (dz/dxi)^2.

        At 1 the equations lose their meaning: fixed points near each other become as many as one
        likes. For "gaussian" and "orthogonal" it is r^2 of Theorem 3.2, for "goe" it reaches 1
        together with the spectral radius, for "antisymmetric" it stays below 1 at any V.
        """
        S = families.carried(self.ensemble, self.V, self.response**2)
        return S * self.responses().mean(torch.square)


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
    equations = Equations(
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
