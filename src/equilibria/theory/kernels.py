"""Kernels of a wide network: of its outputs (NNGP), and of its gradients (NTK)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.nn.init import Ensemble
from equilibria.theory import traces
from equilibria.theory.activations import Activation
from equilibria.theory.field import mean_product
from equilibria.theory.linear import second_moment
from equilibria.theory.meanfield import Injection, MeanField, NoMeanFieldError, mean_field
from equilibria.theory.quadrature import root
from equilibria.theory.traces import critical_V

CLOSE = 1e-6
"""Error of `mean_product`: a correlation that is this close to 1 is 1."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two inputs, by what a wide network sees of them.

    Args:
        first: x.x / N.
        second: x'.x' / N.
        product: x.x' / N.
        means: of the entries of x and of x'.
    """

    first: float = 1.0
    second: float = 1.0
    product: float = 0.0
    means: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        given = (self.first, self.second, self.product, *self.means)
        if not all(math.isfinite(number) for number in given):
            raise ValueError(f"the products and means of two inputs must be finite, got {given}")
        left, right = self.variances
        if left < -1e-12 or right < -1e-12:
            raise ValueError(
                f"a mean square is below the square of its mean: {self.first}, {self.second} with "
                f"means {self.means}"
            )
        if abs(self.covariance) > math.sqrt(max(0.0, left * right)) * (1 + 1e-9) + 1e-12:
            raise ValueError(
                f"no two inputs have the products {self.first}, {self.second}, {self.product} and "
                f"the means {self.means}: the Gram matrix is not positive"
            )

    @property
    def variances(self) -> tuple[float, float]:
        """Of the entries of x and of x'."""
        return self.first - self.means[0] ** 2, self.second - self.means[1] ** 2

    @property
    def covariance(self) -> float:
        """Of the entries of x with those of x'."""
        return self.product - self.means[0] * self.means[1]


def nngp(
    activation: str | Activation | Callable[[Tensor], Tensor],
    ensemble: Ensemble,
    V: float,
    pair: Pair,
    *,
    injection: Injection = "outside",
) -> float:
    """Return the kernel K(x, x') = E z*(x).z*(x') / N of a wide network with tied weights.

    A readout v^T z* with entries of variance 1/N is a Gaussian process of this covariance. With
    Gaussian fields of covariance V K in h and h', K = E (phi(h) + x) (phi(h') + x') ("inside"
    K = E phi(h) phi(h')); for "goe" and "antisymmetric" with the reaction of each, as in
    `mean_field`.

    Args:
        activation, ensemble, V, injection: as for `mean_field`; inputs are Gaussian where they are
            there.
        pair: the inputs.

    Raises:
        NoMeanFieldError: a ValueError. One of the inputs has no mean field at this V.
        ValueError: as for `mean_field`.

    papers: Agarwala and Schoenholz 2022, eq. 90-91.
    """
    return _pair(activation, ensemble, V, pair, injection).overlap


def ntk(
    activation: str | Activation | Callable[[Tensor], Tensor],
    ensemble: Ensemble,
    V: float,
    pair: Pair,
    *,
    injection: Injection = "outside",
) -> float:
    """Return the neural tangent kernel Theta(x, x') / N with respect to W.

    For f = v^T z* with entries of v of variance 1/N, df/dW = D (I - W^T D)^-1 v z*^T, D = diag of
    phi'(h*), and Theta = E <df/dW, df'/dW> = tr[(I - D W)^-1 D D' (I - W^T D')^-1] z*.z'*, tr the
    normalised trace. With a = phi' / (1 - tau V chi phi') the trace is
    E a a' / (1 - S E a a'), S = V but for "normal".

    That is with respect to the entries of W itself. In W = sqrt(V / N) G with G the parameter the
    kernel is V times what this returns.

    Args:
        activation, ensemble, V, pair, injection: as for `nngp`.

    Raises:
        NoMeanFieldError: a ValueError. An input has no mean field at this V, or the kernel is
            infinite (S E a a' >= 1).
        ValueError: as for `nngp`.

    papers: Agarwala and Schoenholz 2022, eq. 92-95; there D stands at z* instead of h* and on z*
        instead of the Jacobian.
    """
    found = _pair(activation, ensemble, V, pair, injection)
    alignment = found.alignment()
    S = traces.carry_over(ensemble, V, found.first.response * found.second.response)
    if S * alignment >= 1:
        raise NoMeanFieldError(
            f"the tangent kernel of {found.first.activation.name} is infinite at V = {V:g}, "
            f"ensemble '{ensemble}': the Jacobian of the fixed point diverges; a smaller V has one"
        )
    return alignment / (1 - S * alignment) * found.overlap


def linear_nngp(ensemble: Ensemble, V: float, product: float) -> float:
    """Return K(x, x') = m x.x' / N of the linear network z = W z + x, m = E z.z / (x.x).

    Args:
        ensemble: of W.
        V: mean square of its singular values.
        product: x.x' / N.

    Raises:
        ValueError: m is infinite: V is at its critical value, or above it for another ensemble than
            "orthogonal" and "antisymmetric".

    papers: Agarwala and Schoenholz 2022, eq. 8, 66 (corrected), 91.
    """
    return _finite_moment(ensemble, V) * product


def linear_ntk(ensemble: Ensemble, V: float, product: float) -> float:
    """Return Theta(x, x') / N = m^2 x.x' / N of the linear network, m = E z.z / (x.x).

    Args:
        ensemble, V, product: as for `linear_nngp`.

    Raises:
        ValueError: as for `linear_nngp`.

    papers: Agarwala and Schoenholz 2022, section 2.1.2.
    """
    return _finite_moment(ensemble, V) ** 2 * product


def _finite_moment(ensemble: Ensemble, V: float) -> float:
    moment = second_moment(ensemble, V)
    if moment == math.inf:
        raise ValueError(
            f"a linear network with '{ensemble}' weights has no kernel at V = {V:g}: its second "
            f"moment diverges at V = {critical_V(ensemble):g}"
        )
    return moment


# --- two inputs at once --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _FieldPair:
    """The mean fields of two inputs, and what they have in common.

    Attributes:
        first, second: the mean field of each.
        common: covariance of the Gaussian sides u and u' of h and h'.
        overlap: E z z'.
    """

    first: MeanField
    second: MeanField
    common: float
    overlap: float

    def alignment(self) -> float:
        """E a a', a = dz/dxi."""
        first, second = self.first.field, self.second.field
        return mean_product(first, second, self.common, first.response, second.response)


def _pair(
    activation: str | Activation | Callable[[Tensor], Tensor],
    ensemble: Ensemble,
    V: float,
    pair: Pair,
    injection: Injection,
) -> _FieldPair:
    first, second = (
        mean_field(
            activation,
            ensemble,
            V,
            input_variance=max(0.0, variance),
            input_mean=mean,
            injection=injection,
        )
        for variance, mean in zip(pair.variances, pair.means, strict=True)
    )
    phi = first.activation
    S = traces.carry_over(ensemble, V, first.response * second.response)
    inside = injection == "inside"
    shares = 1.0 if inside else first.coupling * second.coupling
    from_inputs = shares * pair.covariance
    crossed = 0.0
    if not inside:
        # phi(h) sees x' through u alone, in which x' is c x of the reaction: E[x' | u] is linear.
        for one, other in ((0, 1), (1, 0)):
            mine, theirs = (first, second)[one], pair.means[other]
            law = mine.law
            h, value = law.values, phi(law.values)
            expected = torch.full_like(h, theirs)
            if mine.coupling and mine.spread > 0:
                u = h - mine.coupling * value
                expected += mine.coupling * pair.covariance / mine.spread * (u - mine.centre)
            crossed += float((law.weights * value * expected).sum())
        crossed += pair.product

    def overlap(common: float) -> float:
        return mean_product(first.field, second.field, common, phi, phi) + crossed

    bound = math.sqrt(first.noise * second.noise)
    ends = tuple(S * overlap(end + from_inputs) - end for end in (-bound, bound))
    # Where the inputs are the same correlation 1 is a solution, and -1 may be where they are
    # opposite. It is the one that is meant, stable or not, but f is 0 there to its error only.
    if bound == 0:
        noise = 0.0
    elif ends[1] >= -CLOSE * bound:
        noise = bound
    elif ends[0] <= CLOSE * bound:
        noise = -bound
    else:
        noise = root(
            lambda c: S * overlap(c + from_inputs) - c,
            -bound,
            bound,
            ends=(ends[0], ends[1]),
            tolerance=1e-8,
        )
    common = noise + from_inputs
    return _FieldPair(first=first, second=second, common=common, overlap=overlap(common))
