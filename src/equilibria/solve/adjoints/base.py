"""What an adjoint is."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from typing_extensions import override

from equilibria.solve.equation import Derivative
from equilibria.solve.implicit import Found, implicit
from equilibria.solve.nonlinear import Nonlinear
from equilibria.solve.options import Options
from equilibria.solve.tree import Leaves


@dataclass(frozen=True, kw_only=True)
class Adjoint(Options, abc.ABC):
    """How a fixed point is found so that autograd can differentiate it."""

    @property
    def now(self) -> Adjoint:
        """The adjoint in use, of one that changes in training."""
        return self

    @property
    def levels(self) -> tuple[Adjoint, ...]:
        """All that it may become."""
        return (self,)

    @property
    @abc.abstractmethod
    def derivative(self) -> Derivative:
        """How the implicit function differentiates the solution."""

    @abc.abstractmethod
    def find(self, equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
        """Solves from `z` at the operands `p`, and connects the solution to what f depends on."""


@dataclass(frozen=True, kw_only=True)
class ImplicitAdjoint(Adjoint, Derivative, abc.ABC):
    """An adjoint that knows the solution by the equation that it satisfies, not by its path."""

    @property
    @override
    def derivative(self) -> Derivative:
        return self

    @override
    def find(self, equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
        return implicit(equation, [leaf.detach() for leaf in z], p)
