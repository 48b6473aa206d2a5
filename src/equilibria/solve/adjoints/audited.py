"""An inexact adjoint that is checked against the exact one, and given up where it fails."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import override

from equilibria.solve.adjoints.base import Adjoint
from equilibria.solve.adjoints.implicit import Implicit
from equilibria.solve.adjoints.neumann import JacobianFree, NeumannPhantom
from equilibria.solve.adjoints.phantom import Phantom
from equilibria.solve.equation import Derivative
from equilibria.solve.implicit import Found
from equilibria.solve.linear import LinearSolver, Relay
from equilibria.solve.nonlinear import Nonlinear
from equilibria.solve.options import check_damping, check_whole
from equilibria.solve.solvers import Solver
from equilibria.solve.tree import Leaves


@dataclass(frozen=True, kw_only=True)
class Audited(Adjoint):
    """The cheapest of four adjoints whose gradient points where the exact one does.

    In order of cost: `JacobianFree`, `NeumannPhantom`, `Phantom`, `Implicit`. It behaves as the one
    that `rung` names. Training measures, every `every` steps and on the step's own batch, the
    cosine of its gradient with the exact one, of all parameters of the layer; while that is below
    `floor` it goes one rung up. It never goes down again: a layer that has outgrown an estimator
    would soon do so again.

    Nothing changes while a layer runs: the next rung is another value of this class, which
    `eq.stability.AdjointAudit` puts into the layer between two steps.

    Source: Bai 2022 (thesis), sec. 5.4, which leaves open how exact a gradient has to be.

    Attributes:
        floor: the smallest cosine that is tolerated, in (0, 1].
        every: steps between two measurements, each of which costs two forwards and backwards.
        steps: of `NeumannPhantom` and `Phantom`.
        damping: of both.
        linear: of `Implicit`, and of the exact gradient that is compared with.
        rung: the one in use, from 0.
    """

    floor: float = 0.95
    every: int = 200
    steps: int = 5
    damping: float = 0.5
    linear: LinearSolver | Solver = field(default_factory=Relay)
    rung: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1:
            raise ValueError(f"Audited(floor=...): expected a cosine in (0, 1], got {self.floor!r}")
        check_whole(self, "every", 1)
        check_whole(self, "steps", 1)
        check_damping(self)
        check_whole(self, "rung", 0)
        if self.rung >= len(self.ladder):
            raise ValueError(
                f"Audited(rung=...): expected 0 to {len(self.ladder) - 1}, got {self.rung}"
            )

    @property
    def ladder(self) -> tuple[Adjoint, ...]:
        """All of them, the cheapest first."""
        steps: dict[str, Any] = {"steps": self.steps, "damping": self.damping}
        return (JacobianFree(), NeumannPhantom(**steps), Phantom(**steps), self.exact)

    @property
    def exact(self) -> Implicit:
        """The exact one, the last."""
        return Implicit(linear=self.linear)

    @property
    def now(self) -> Adjoint:
        """The one in use."""
        return self.ladder[self.rung]

    @property
    def top(self) -> bool:
        """Is the exact one in use?"""
        return self.rung == len(self.ladder) - 1

    def raised(self) -> Audited:
        """One rung up, or the same at the top."""
        return self if self.top else replace(self, rung=self.rung + 1)

    @property
    @override
    def derivative(self) -> Derivative:
        return self.now.derivative

    @override
    def find(self, equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
        return self.now.find(equation, z, p)
