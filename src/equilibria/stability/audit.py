"""An audit of the gradient that a layer trains by; see `eq.AdaptiveAdjoint`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria import draws, solve
from equilibria.nn import using
from equilibria.nn.using import layers
from equilibria.solve import Adjoint, Implicit
from equilibria.stability.examined import parameters_of

# --- adaptive -------------------------------------------------------------------------------------

# An inexact adjoint that is checked against the exact one, and given up where it fails.


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

    min_cosine: float = solve.number_field(0.95, lambda x: 0 < x <= 1, "a cosine in (0, 1]")
    check_every: int = solve.whole_field(200, 1)
    steps: int = solve.whole_field(5, 1)
    damping: float = solve.damping_field(0.5)
    linear: solve.LinearSolver | solve.Solver = field(default_factory=solve.Fallback)
    level: int = solve.whole_field(0, 0)

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
        phantoms = (solve.NeumannPhantom(**steps), solve.Phantom(**steps))
        return (solve.JacobianFree(), *phantoms, self.exact)

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

    def climb(self) -> AdaptiveAdjoint:
        """One level up, or the same at the top."""
        return self if self.top else replace(self, level=self.level + 1)


# --- audit ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Audit:
    """What an audit has found.

    Attributes:
        step: at which.
        adjoint: the one in use from now on, such as "NeumannPhantom".
        level: its place among them, from 0.
        cosine: of its gradient with the exact one; of the exact one itself 1.
        before: the level before.
    """

    step: int
    adjoint: str
    level: int
    cosine: float
    before: int

    @property
    def raised(self) -> bool:
        """Has the level risen?"""
        return self.level > self.before


class AdjointAudit:
    """Audits the layers of a module whose adjoint is `AdaptiveAdjoint`, between two training steps.

    All of them are at the same level. A measurement leaves buffers and random numbers as they
    were.

    Args:
        module: a `DEQ`, or a module that holds some.
        average: a cosine measured here -> the one that all processes act on.

    Raises:
        ValueError: no layer inside has the adjoint, or they differ in it.

    Example:
        >>> audit = eq.stability.AdjointAudit(model)
        >>> for step, (x, y) in enumerate(batches):
        ...     audit(step, lambda: loss(model(x), y))
        ...     loss(model(x), y).backward()
    """

    def __init__(
        self, module: nn.Module, average: Callable[[float], float] = lambda cosine: cosine
    ) -> None:
        self.module, self.average = module, average
        self.layers = [
            layer for layer in layers(module).values() if isinstance(layer.adjoint, AdaptiveAdjoint)
        ]
        if not self.layers:
            raise ValueError(
                f"{type(module).__name__} has no equilibrium layer whose adjoint is adaptive: make "
                "it with adjoint=eq.AdaptiveAdjoint()"
            )
        if len({repr(layer.adjoint) for layer in self.layers}) > 1:
            raise ValueError("the layers have different adaptive adjoints: give all the same")
        self.latest: Audit | None = None

    @property
    def adjoint(self) -> AdaptiveAdjoint:
        """As it stands."""
        found = self.layers[0].adjoint
        assert isinstance(found, AdaptiveAdjoint)
        return found

    def resume(self, level: int) -> None:
        """Go to a level, for a training that is resumed."""
        adjoint = self.adjoint
        while adjoint.level < level and not adjoint.top:
            adjoint = adjoint.climb()
        self._set_adjoint(adjoint)

    def due(self, step: int) -> bool:
        """Return whether `step` is one of those at which something is measured."""
        return step % self.adjoint.check_every == 0 and not self.adjoint.top

    def __call__(self, step: int, loss: Callable[[], Tensor]) -> Audit | None:
        """Measure, where `step` is one of every `check_every`, and climb as far as is needed.

        Args:
            step: of the training, from 0.
            loss: evaluates the module on the step's batch, -> scalar. It is called twice, and once
                more for each level that it rises.

        Returns:
            What was found; None where nothing was measured: the step is none of those, or the
            loss or the exact gradient is not finite.

        Raises:
            ValueError: no parameter of the layers requires a gradient, or the loss is no scalar.
        """
        if not self.due(step):
            return None
        adjoint = self.adjoint
        before, exact = adjoint.level, self._gradient(loss, adjoint.exact)
        cosine = 1.0
        while not adjoint.top:
            cosine = self.average(_cosine(self._gradient(loss, adjoint.now), exact))
            if math.isnan(cosine):  # so it is on every process
                return None
            if cosine >= adjoint.min_cosine:
                break
            adjoint, cosine = adjoint.climb(), 1.0
        self._set_adjoint(adjoint)
        name = type(adjoint.now).__name__
        self.latest = Audit(step, name, adjoint.level, cosine, before)
        return self.latest

    def _set_adjoint(self, adjoint: AdaptiveAdjoint) -> None:
        for layer in self.layers:
            layer.adjoint = adjoint

    def _gradient(self, loss: Callable[[], Tensor], adjoint: Adjoint) -> Tensor:
        """Of all parameters of the layers, in one row."""
        parameters = [p for layer in self.layers for p in parameters_of(layer) if p.requires_grad]
        if not parameters:
            raise ValueError(
                "no parameter of the layers requires a gradient, so an adaptive adjoint has "
                "nothing to measure: take another one"
            )
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        devices = sorted({p.device.index for p in parameters if p.device.type == "cuda"})
        with ExitStack() as around:
            around.enter_context(torch.random.fork_rng(devices))
            around.enter_context(draws.fork())  # all gradients are of one loss, mask for mask
            around.enter_context(warnings.catch_warnings())
            around.enter_context(torch.enable_grad())
            # Training counts how its solves end.
            warnings.simplefilter("ignore", solve.SolveWarning)
            with ExitStack() as methods:
                for layer in self.layers:  # others in the module keep their own
                    methods.enter_context(using(layer, adjoint=adjoint))
                value = loss()
                if not isinstance(value, Tensor) or value.numel() != 1:
                    given = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
                    raise ValueError(f"loss returned {given}: expected a scalar tensor")
                found = torch.autograd.grad(value, parameters, materialize_grads=True)
        with torch.no_grad():
            for name, buffer in self.module.named_buffers():
                buffer.copy_(buffers[name])
        row = torch.cat([g.flatten().double() for g in found])
        # Of a loss that is not finite an adjoint solve keeps what was: a gradient that looks well.
        return row if bool(torch.isfinite(value.detach()).all()) else row.fill_(math.nan)


def _cosine(a: Tensor, b: Tensor) -> float:
    """NaN where b is not finite, 0 where only a is not; 1 where both vanish."""
    if not bool(torch.isfinite(b).all()):
        return math.nan
    if not bool(torch.isfinite(a).all()):
        return 0.0
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths else float(torch.equal(a, b))
