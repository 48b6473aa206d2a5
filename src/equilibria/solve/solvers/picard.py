"""Plain and damped iteration."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from equilibria.solve.options import check_damping
from equilibria.solve.rows import Rows, add_scaled
from equilibria.solve.solvers.base import Point, Solver, Stepper


@dataclass(frozen=True, kw_only=True)
class Picard(Solver):
    """Fixed-point iteration z <- (1 - damping) z + damping f(z).

    Converges where the damped map contracts: for damping 1, where the spectral radius of df/dz at
    the solution is below 1. History: none.

    Source: Bai et al. 2019, sec. 3.1; damping is the lambda of Bai 2022 (thesis), eq. 5.9.

    Attributes:
        damping: between 0 and 2, exclusive; 1 is undamped.
    """

    damping: float = 1.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_damping(self)

    @override
    def start(self, tracked: bool, jacobian: object = None) -> Stepper:
        return _Picard(self.damping)


class _Picard(Stepper):
    def __init__(self, damping: float) -> None:
        self.damping = damping

    @override
    def step(self, now: Point) -> Rows:
        return now.f if self.damping == 1 else add_scaled(now.z, self.damping, now.residual)

    @override
    def select(self, index: Tensor) -> None:
        pass
