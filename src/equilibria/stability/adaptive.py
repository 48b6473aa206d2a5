"""An inexact adjoint that is checked against the exact one, and given up where it fails."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import override

from equilibria.solve import (
    Adjoint,
    Fallback,
    Implicit,
    JacobianFree,
    LinearSolver,
    NeumannPhantom,
    Phantom,
    Solver,
    damping_field,
    number_field,
    whole_field,
)

__all__ = ["AdaptiveAdjoint"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveAdjoint(Adjoint):
    """The cheapest of four adjoints whose gradient points where the exact one does.

    In order of cost: `JacobianFree`, `NeumannPhantom`, `Phantom`, `Implicit`. It behaves as the one
    that `level` names. Training measures, every `check_every` steps and on the step's own batch,
    the cosine of its gradient with the exact one, of all parameters of the layer; while that is
    below `min_cosine` it goes one level up. It never goes down again: a layer that has outgrown an
    estimator would soon do so again.

    Nothing changes while a layer runs: the next level is another value of this class, which
    `eq.stability.AdjointAudit` puts into the layer between two steps.

    Source: Bai 2022 (thesis), sec. 5.4, which leaves open how exact a gradient has to be.

    Attributes:
        min_cosine: the smallest cosine that is tolerated, in (0, 1].
        check_every: steps between two measurements, each of which costs two forwards and backwards.
        steps: of `NeumannPhantom` and `Phantom`.
        damping: of both.
        linear: of `Implicit`, and of the exact gradient that is compared with.
        level: the one in use, from 0.
    """

    min_cosine: float = number_field(0.95, lambda x: 0 < x <= 1, "a cosine in (0, 1]")
    check_every: int = whole_field(200, 1)
    steps: int = whole_field(5, 1)
    damping: float = damping_field(0.5)
    linear: LinearSolver | Solver = field(default_factory=Fallback)
    level: int = whole_field(0, 0)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level >= len(self.levels):
            raise ValueError(
                f"AdaptiveAdjoint(level=...): expected 0 to {len(self.levels) - 1}, got "
                f"{self.level}"
            )

    @property
    @override
    def levels(self) -> tuple[Adjoint, ...]:
        """All of them, the cheapest first."""
        steps: dict[str, Any] = {"steps": self.steps, "damping": self.damping}
        return (JacobianFree(), NeumannPhantom(**steps), Phantom(**steps), self.exact)

    @property
    def exact(self) -> Implicit:
        """The exact one, the last."""
        return Implicit(linear=self.linear)

    @property
    @override
    def now(self) -> Adjoint:
        """The one in use."""
        return self.levels[self.level]

    @property
    def top(self) -> bool:
        """Is the exact one in use?"""
        return self.level == len(self.levels) - 1

    def raised(self) -> AdaptiveAdjoint:
        """One level up, or the same at the top."""
        return self if self.top else replace(self, level=self.level + 1)
