"""Adjoints that differentiate steps of an iteration instead of its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from equilibria.solve.derivative import Linearisation
from equilibria.solve.equation import Adjoint, Equation
from equilibria.solve.solvers.base import check_damping, check_whole
from equilibria.solve.tree import Leaves


@dataclass(frozen=True, kw_only=True)
class PathAdjoint(Adjoint):
    """To the implicit function the solution is a constant: the steps taken after it are not."""

    @override
    def first_order(self, equation: Equation, jacobian: Linearisation, g: Leaves) -> Leaves:
        return [0 * x for x in g]

    @override
    def cotangent(self, equation: Equation, z: Leaves, p: Leaves, g: Leaves) -> Leaves:
        return [0 * x for x in g]

    @override
    def tangent(self, equation: Equation, z: Leaves, p: Leaves, c: Leaves) -> Leaves:
        return [0 * x for x in c]


@dataclass(frozen=True, kw_only=True)
class Phantom(PathAdjoint):
    """The unrolling-based phantom gradient (UPG): `steps` damped iterations from the solution.

        z <- (1 - damping) z + damping f(z),  from z = z*, differentiated step by step.

    The value returned is the iterate after these steps, in training and evaluation alike; they are
    counted, and so is the evaluation that measures its residual. The gradient is that of the
    truncated path: with r < 1 the norm of damping J + (1 - damping) I, its relative error is at
    most r^steps, and what z* lacks in accuracy the steps make up in part. Memory: `steps`
    evaluations of f.

    Source: Bai 2022 (thesis), eq. 5.11 and Alg. 1; Geng et al. 2021.

    Attributes:
        steps: the k of the papers, >= 1.
        damping: their lambda, between 0 and 2, exclusive.
    """

    steps: int = 5
    damping: float = 0.5

    def __post_init__(self) -> None:
        check_whole(self, "steps", 1)
        check_damping(self)


@dataclass(frozen=True, kw_only=True)
class Unrolled(PathAdjoint):
    """Differentiates the solver's own iterations (backpropagation through time).

    The gradient is exact for the iterate that is returned, the last one, and the start z0 gets its
    gradient too. Memory grows with every evaluation; with `checkpoint`, by the iterates alone, and
    f is evaluated twice.

    Attributes:
        checkpoint: keep the iterates only and evaluate f again in backward.
    """

    checkpoint: bool = False

    def __post_init__(self) -> None:
        given: Any = self.checkpoint
        if not isinstance(given, bool):
            raise TypeError(f"Unrolled(checkpoint=...): expected a bool, got {given!r}")
