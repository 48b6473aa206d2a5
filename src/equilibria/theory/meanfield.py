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
from equilibria.theory import traces
from equilibria.theory.activations import Activation, as_activation
from equilibria.theory.field import CoupledField, Law
from equilibria.theory.quadrature import root

# --- cavity ---------------------------------------------------------------------------------------

# The self-consistent equations of a wide network, and their first solution.


Injection = Literal["outside", "inside"]
"""Where the input enters: z = phi(W z) + x ("outside"), or z = phi(W z + x) ("inside")."""

LARGEST = 1e12
"""A variance is called infinite that is so many times 1, the input's mean square, and what the
input alone makes it."""

SMALLEST = 1e-10
"""Of the input's mean square: where a solution other than 0 is looked for from."""

SCAN = 10
"""Steps in which the reaction is followed up from 0 to find its first solution."""


class NoMeanFieldError(ValueError):
    """The self-consistent equations have no solution at this V; the message says what is known."""


@dataclass(frozen=True)
class Equations:
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
        field = CoupledField(self.phi, centre, spread, coupling)
        h, weights = field.law.values, field.law.weights
        value = self.phi(h)
        response = float((weights * field.response(h)).sum())
        output = float((weights * value**2).sum())
        if not inside:
            # x is part of u, the Gaussian side of h: E[x | u] is linear in u.
            u = h - coupling * value
            share = coupling * self.x_variance / spread if spread > 0 else 0.0
            expected = self.x_mean + share * (u - centre)
            output += 2 * float((weights * value * expected).sum()) + x_square
        return response, output

    def noise(self, coupling: float) -> float:
        """The variance v of the field with v = S(chi^2) q.

        Raises:
            NoMeanFieldError: it is infinite.
        """
        if self.V == 0:
            return 0.0

        def shortfall(v: float) -> float:
            response, output = self.averages(v, coupling)
            return traces.carry_over(self.ensemble, self.V, response**2) * output - v

        unit = self.x_variance + self.x_mean**2 or 1.0
        low, at_low = 0.0, shortfall(0.0)
        if at_low <= 0:  # without input 0 is a solution, and a larger one may be
            low = SMALLEST * unit
            at_low = shortfall(low)
            if at_low <= 0:
                return 0.0
        high, factor = 2 * (low + at_low), 4.0
        largest = LARGEST * max(1.0, unit, at_low)
        while (at_high := shortfall(high)) > 0:
            low, at_low, high, factor = high, at_high, factor * high, 2 * factor
            if high > largest:
                raise NoMeanFieldError(
                    f"the variance of h is infinite for {self.phi.name} at V = {self.V:g}, "
                    f"ensemble '{self.ensemble}': a smaller V has a finite one"
                )
        return root(shortfall, low, high, ends=(at_low, at_high))

    def coupling(self, tau: int) -> float:
        """The first c from 0 on with c = tau V chi.

        Raises:
            NoMeanFieldError: there is none.
        """
        infinite: list[NoMeanFieldError] = []
        seen: dict[float, float] = {}

        def shortfall(c: float) -> float:
            return tau * self.V * self.averages(self.noise(c), c)[0] - c

        def ahead(c: float) -> float | None:
            """How far the solution is from c, above 0 before it; None where h has no variance."""
            try:
                seen[c] = sign * shortfall(c)
            except NoMeanFieldError as error:
                infinite.append(error)
                return None
            return seen[c]

        steepest, flattest = self.phi.steepest, self.phi.flattest
        sign = tau if steepest >= -flattest else -tau
        start = ahead(0.0)
        if start is None and tau > 0:
            raise infinite[0]
        if start == 0:
            return 0.0
        if start is not None and start < 0:
            sign = -sign
            seen[0.0] = start = -start
        limit = self._limit(tau, sign)
        low, at_low = 0.0, start
        for step in range(1, SCAN + 1):
            high = limit * step / SCAN
            at_high = ahead(high)
            if at_low is not None and at_high is None:
                # Symmetric weights raise the variance: the solution may lie just before it ends.
                high = _find_crossing(ahead, low, high, above=True)
                if high is None:
                    break
                return root(shortfall, low, high, tolerance=1e-12)
            if at_high is not None and at_high <= 0:
                if at_low is None:
                    # Antisymmetric ones lower it, and it may be finite from some reaction on.
                    low = _find_crossing(ahead, high, low, above=False)
                    if low is None:
                        break
                return root(shortfall, low, high, tolerance=1e-12)
            low, at_low = high, at_high
        if seen:
            # Two solutions may lie between two places: on both sides of where least is missing.
            places = sorted(seen, key=abs)
            nearest = places.index(min(places, key=seen.__getitem__))
            if 0 < nearest < len(places) - 1:
                low = places[nearest - 1]
                high = _dip(ahead, low, places[nearest + 1])
                if high is not None:
                    return root(shortfall, low, high, tolerance=1e-12)
        if infinite:
            raise infinite[0]
        raise NoMeanFieldError(
            f"no solution for {self.phi.name} at V = {self.V:g}, ensemble '{self.ensemble}': what "
            "comes back to a unit of its own output would hold it in place, and the network has "
            "many fixed points; a smaller V has one"
        )

    def _limit(self, tau: int, sign: int) -> float:
        """The end of the couplings of a sign that may be solutions."""
        steepest, flattest = self.phi.steepest, self.phi.flattest
        largest = self.V * max(steepest, -flattest)
        # What is sent out comes back against itself: the response is less than without.
        most = largest * 1e3 + 1.0 if tau > 0 else largest * (1 + 1e-9) + 1e-12
        # From this end on h - c phi(h) descends somewhere: h would have several values.
        slope = sign * (steepest if sign > 0 else flattest)
        return sign * min(most, 1 / slope if slope > 0 else math.inf) * (1 - 1e-9)


Ahead = Callable[[float], float | None]


def _find_crossing(f: Ahead, finite: float, infinite: float, *, above: bool) -> float | None:
    """A place, towards where f has no value, on the other side of 0 than f(finite) is."""
    for _ in range(14):
        middle = (finite + infinite) / 2
        value = f(middle)
        if value is None:
            infinite = middle
        elif (value <= 0) == above:
            return middle
        else:
            finite = middle
    return None


def _dip(f: Ahead, low: float, high: float) -> float | None:
    """A place between two where f, of one minimum, is not above 0: by golden section."""
    share = (math.sqrt(5) - 1) / 2
    inner = [high - share * (high - low), low + share * (high - low)]
    values = [f(c) for c in inner]
    for _ in range(15):
        for c, value in zip(inner, values, strict=True):
            if value is not None and value <= 0:
                return c
        left, right = (math.inf if value is None else value for value in values)
        if left < right:
            high = inner[1]
            inner = [high - share * (high - low), inner[0]]
            values = [f(inner[0]), values[0]]
        else:
            low = inner[0]
            inner = [inner[1], low + share * (high - low)]
            values = [values[1], f(inner[1])]
    return None


# --- meanfield ------------------------------------------------------------------------------------


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
    def field(self) -> CoupledField:
        """What h is made of: u, and the unit's own output."""
        return CoupledField(self.activation, self.centre, self.spread, self.coupling)

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
        S = traces.carry_over(self.ensemble, self.V, self.response**2)
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
    the reaction has the other sign for "antisymmetric"; for "normal" see `traces.carry_over`.

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
    traces.check_family(ensemble, V)
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
    tau = traces.reaction(ensemble) if reaction else 0
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
