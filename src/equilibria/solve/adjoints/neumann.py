"""Truncated adjoints: a few terms of the Neumann series, and one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from equilibria.solve.adjoints.base import ImplicitAdjoint
from equilibria.solve.derivative import Linearisation, pullback, pushforward
from equilibria.solve.equation import Equation
from equilibria.solve.options import check_damping, check_whole
from equilibria.solve.tree import Leaves


def truncated(
    multiply: Callable[[Leaves], Leaves], g: Leaves, steps: int, damping: float
) -> Leaves:
    """damping (1 + B + ... + B^(steps-1)) g, with B v = damping A v + (1 - damping) v.

    By Horner's rule, u <- B u + damping g: steps - 1 products.
    """
    if damping == 1:  # fewer passes over a state that may be large beside f
        u = list(g)
        for _ in range(steps - 1):
            u = [a + x for a, x in zip(multiply(u), g, strict=True)]
        return u
    u = [damping * x for x in g]
    for _ in range(steps - 1):
        product = multiply(u)
        u = [
            damping * a + (1 - damping) * b + damping * x
            for a, b, x in zip(product, u, g, strict=True)
        ]
    return u


@dataclass(frozen=True, kw_only=True)
class NeumannPhantom(ImplicitAdjoint):
    """The Neumann-series phantom gradient (NPG): the exact adjoint's series, cut short.

        u = damping (I + B + ... + B^(steps-1))^T dL/dz*,  B = damping J + (1 - damping) I,

    at the solution found. The error is B^steps applied to the exact (I - J)^-T dL/dz*: with
    ||B|| = r < 1 a relative error of at most r^steps, in u. Costs `steps` - 1 vector-Jacobian
    products and no memory beyond one evaluation of f. Higher derivatives are those of this series.

    Source: Bai 2022 (thesis), eq. 5.12; Geng et al. 2021.

    Attributes:
        steps: terms kept, the k of the papers, >= 1.
        damping: their lambda, between 0 and 2, exclusive.
    """

    steps: int = 5
    damping: float = 0.5

    def __post_init__(self) -> None:
        check_whole(self, "steps", 1)
        check_damping(self)

    @property
    @override
    def fixed_steps(self) -> bool:
        return True

    @override
    def first_order(self, equation: Equation, jacobian: Linearisation, g: Leaves) -> Leaves:
        return truncated(jacobian.transposed, g, self.steps, self.damping)

    @override
    def cotangent(self, equation: Equation, z: Leaves, p: Leaves, g: Leaves) -> Leaves:
        at = at_parameters(equation, p)
        return truncated(lambda u: pullback(at, z, u), g, self.steps, self.damping)

    @override
    def tangent(self, equation: Equation, z: Leaves, p: Leaves, c: Leaves) -> Leaves:
        at = at_parameters(equation, p)
        return truncated(lambda t: pushforward(at, z, t, like=z), c, self.steps, self.damping)


@dataclass(frozen=True, kw_only=True)
class JacobianFree(ImplicitAdjoint):
    """The Jacobian-free gradient (JFB): u = dL/dz*, as if (I - J)^-1 were the identity.

    The error in u is J^T (I - J)^-T dL/dz*, of relative size ||J||; a descent direction where J is
    a contraction and df/dp well conditioned. Costs nothing but one evaluation of f. Equal to
    `NeumannPhantom(steps=1, damping=1)`.

    Source: Bai 2022 (thesis), eq. 5.16; Fung et al. 2021.
    """

    @property
    @override
    def fixed_steps(self) -> bool:
        return True

    @override
    def first_order(self, equation: Equation, jacobian: Linearisation, g: Leaves) -> Leaves:
        return g

    @override
    def cotangent(self, equation: Equation, z: Leaves, p: Leaves, g: Leaves) -> Leaves:
        return g

    @override
    def tangent(self, equation: Equation, z: Leaves, p: Leaves, c: Leaves) -> Leaves:
        return c


def at_parameters(equation: Equation, p: Leaves) -> Callable[..., tuple[Tensor, ...]]:
    """f as a function of z alone."""

    def function(*z: Tensor) -> tuple[Tensor, ...]:
        return tuple(equation.evaluate(list(z), p))

    return function
