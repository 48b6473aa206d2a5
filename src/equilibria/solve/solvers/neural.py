"""A solver with a learned start and learned mixing weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg, private
from equilibria.solve.rows import Layout, Rows, add_scaled, choose, length
from equilibria.solve.solvers.anderson import ROOM, Acceleration, AndersonStepper, minimiser
from equilibria.solve.solvers.base import Point, Solver, Stepper, check_at_least, check_whole

SMALLEST = 1e-30
"""A length that is divided by, or of which a logarithm is taken, at least."""

ROUNDING = 1e-6
"""Of ||g||: what is left of it by Anderson's weights, at least."""


@dataclass(frozen=True, kw_only=True)
class NeuralSolver(Acceleration):
    """Anderson acceleration that begins at a learned start and mixes by learned weights.

    The weights belong to a `DEQ`, its `neural`, where `eq.distil` puts them; this
    is a solver of layers that have some, in eval mode as a rule: `layer.eval_solver =
    NeuralSolver()`. Whatever they say,

    - each step stores its difference as `Anderson` does, and after `horizon` evaluations `Anderson`
      goes on with that history;
    - so it does at once, from the best iterate, for a sample whose residual has not fallen in
      `fallback` evaluations;
    - the mixed residual ||G alpha|| is at most sqrt(1 + `trust`^2) times that by `Anderson`'s
      weights, which make it least;
    - a learned start whose relative residual is above 1, that of zeros, is dropped for zeros;
    - status and residual are measured as those of any other solver.

    Where there are mixing weights, `stats.choices` has the evaluations of each sample by these,
    and by `Anderson`'s.

    History: that of `Anderson`.

    Attributes:
        history: differences kept, >= 1.
        period: evaluations from one extrapolation to the next once `Anderson` goes on.
        horizon: evaluations in which learned weights are asked, >= 1.
        fallback: evaluations without progress after which they are asked no more, >= 1.
        trust: bound of the correction, see above, and of |beta - 1|; None: no bound, as in the
            papers.

    Source:
        Bai 2022 (thesis), ch. 6 (Algorithm 3); Bai, Koltun and Kolter 2022. The fallback is ours.
    """

    history: int | None = 5
    period: int = 1
    horizon: int = 10
    fallback: int = 3
    trust: float | None = 0.5

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history is None:
            raise ValueError("NeuralSolver(history=...): expected a whole number >= 1, got None")
        check_whole(self, "horizon", 1)
        check_whole(self, "fallback", 1)
        if self.trust is not None:
            check_at_least(self, "trust", 0.0)

    @override
    def start(self, tracked: bool, jacobian: object = None) -> Stepper:
        raise TypeError(
            "NeuralSolver has its weights from a layer: make it the solver of a DEQ whose `neural` "
            "eq.distil has trained"
        )

    def with_weights(self, mixer: Mixer | None, *, guessed: bool) -> Solver:
        """This solver with weights.

        Args:
            mixer: gives the mixing weights; None: `Anderson`'s own.
            guessed: the start is a learned one.
        """
        limits = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return WithWeights(**limits, mixer=mixer, guessed=guessed)


@dataclass(frozen=True)
class Seen:
    """What a mixer is shown of the newest evaluations, the newest first.

    Attributes:
        factor: `(samples, s, s)` lower Cholesky factor L of the Gram matrix of the s differences of
            residuals dg_j.
        cosines: `(samples, s)` L^-1 of the products of the dg_j with the newest residual g, over
            ||g||: the cosines of the angles between g and the orthogonalised dg_j.
        gamma: `(samples, s)` Anderson's own weights of the differences.
        left: `(samples,)` ||g - sum_j gamma_j dg_j|| by these weights.
        size: `(samples,)` ||g||.
        lengths: `(samples, s)` ||dg_j||.
        fall: `(samples,)` log of ||g|| over that of the first residual.
        pooled: `(samples, s + 1, features)` what the mixer has kept of the residuals.
    """

    factor: Tensor
    cosines: Tensor
    gamma: Tensor
    left: Tensor
    size: Tensor
    lengths: Tensor
    fall: Tensor
    pooled: Tensor | None


class Mixer(Protocol):
    """Gives the weights of a step."""

    def pool(self, residual: Rows, layout: Layout | None) -> Tensor | None:
        """What is kept of a residual, `(samples, features)`; None for nothing."""
        ...

    def mix(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        """The weights of the differences `(samples, s)`, which stand in gamma's place, and beta
        `(samples,)`, by which the solver's damping is multiplied; None for 1."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class WithWeights(NeuralSolver):
    """A neural solver and its weights, for one layer."""

    mixer: Mixer | None
    guessed: bool

    @property
    @override
    def looks_around(self) -> bool:
        return self.mixer is not None

    @override
    def start(self, tracked: bool, jacobian: object = None) -> Stepper:
        return NeuralStepper(self, tracked)


class NeuralStepper(AndersonStepper):
    """Anderson's differences, combined by learned weights for as long as these do well.

    Without `Point.best`, as in training, nobody watches over them.
    """

    def __init__(self, solver: WithWeights, tracked: bool) -> None:
        super().__init__(solver, tracked)
        self.neural = solver
        self.pooled: list[Tensor] = []  # of the residuals, the newest first
        self.first = self.least = torch.empty(0)  # length of the first residual; of the least
        self.stale = self.until = torch.empty(0)
        self.restart: Tensor | None = None  # who begins again, at zeros
        self.mixed: Tensor | None = None  # length of the mixed residual, where autograd follows

    @override
    def step(self, now: Point) -> Rows:
        if not self.evals:
            self._begin(now)
        plain = self.store(now)
        mixer, period = self.neural.mixer, self.neural.period
        if mixer is not None and self.evals <= self.neural.horizon:
            lost = None if now.best is None else self._lost(now)
            kept = mixer.pool(now.residual, self.layout)
            if kept is not None:
                self.pooled = [kept, *self.pooled[: self.stored]]
            out = self._combined(now, plain, mixer)
            if lost is not None and now.best is not None and private.some(lost):
                out = choose(lost, now.best, out)
        elif self.evals % period or self.evals < 2 * period:
            out = plain
        else:
            out = self.extrapolate(plain)
        if self.restart is not None:
            out = [torch.where(self.restart.unsqueeze(1), 0.0, row) for row in out]
            self.restart = None
        return out

    def _begin(self, now: Point) -> None:
        samples = now.size.shape[0]
        self.first = self.least = now.size
        self.stale = torch.zeros(samples, dtype=torch.long, device=now.size.device)
        self.until = torch.full_like(self.stale, self.neural.horizon)
        if self.neural.guessed:
            # At zeros the residual is f(0), and its relative size 1.
            worse = ~(now.size <= length(now.f))
            self.restart = worse if private.some(worse) else None

    def _lost(self, now: Point) -> Tensor:
        """Who has made no progress for too long, and goes back to the best iterate."""
        better = (now.size < self.least) if self.evals > 1 else torch.ones_like(self.stale).bool()
        self.least = torch.minimum(self.least, now.size)
        self.stale = torch.where(better, 0, self.stale + 1)
        lost = (self.stale >= self.neural.fallback) & (self.until > self.evals)
        self.until = torch.where(lost, self.evals, self.until)
        return lost

    def _combined(self, now: Point, plain: Rows, mixer: Mixer) -> Rows:
        """The step by learned weights, and by Anderson's own for who is past them."""
        if not self.stored:
            return plain
        ages = range(self.stored)
        capacity = self.solver.history or self.stored
        slots = [(self.evals - 2 - age) % capacity for age in ages]  # the newest first
        gram, right = self.system()
        order = torch.tensor(slots, device=gram.device)
        right = right[:, order]
        own, factor = minimiser(gram[:, order][:, :, order], right)
        # A residual of zero, and rounding, have no say in a logarithm or a root, nor in its slope.
        size = now.size.double().clamp_min(SMALLEST)
        white = linalg.solve_lower(factor, right)
        left = (size.square() - white.square().sum(1)).clamp_min(0.0)
        left = torch.maximum(left, (ROUNDING * size).square()).sqrt()
        seen = Seen(
            factor=factor,
            cosines=white / size.unsqueeze(1),
            gamma=own,
            left=left,
            size=size,
            lengths=linalg.lengths(factor.flatten(0, 1)).view(own.shape),
            fall=(size / self.first.double().clamp_min(SMALLEST)).log(),
            pooled=torch.stack(self.pooled, 1) if self.pooled else None,
        )
        gamma, beta = mixer.mix(seen)
        apart, far = self._trusted(gamma - own, seen)
        sound = torch.isfinite(apart).all(1)
        if beta is not None:
            if self.neural.trust is not None:
                beta = beta.clamp(1 - self.neural.trust, 1 + self.neural.trust)
            sound = sound & torch.isfinite(beta)
        if now.best is not None:
            sound = sound & (self.until > self.evals)
        if self.tracked:
            self.mixed = (seen.left.square() + far.square()).sqrt()
        gamma = torch.where(sound.unsqueeze(1), own + apart, own)
        gamma = gamma[:, torch.argsort(order)].to(self.dtype)
        out = self.moves.combine(gamma, 0, onto=plain, scale=-1.0)
        if beta is None:
            return out
        # With a damping d, `out` is z + d g, both mixed; z + beta d g is wanted.
        beta = torch.where(sound, beta, 1.0).to(self.dtype)
        mixed = self.residuals.combine(gamma, ROOM, onto=now.residual, scale=-1.0)
        return add_scaled(out, self.neural.damping * (beta - 1), mixed)

    def _trusted(self, apart: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        """The correction d of Anderson's weights as far as it is trusted, and |L^T d|, by which the
        mixed residual ||G (gamma + d)|| = sqrt(left^2 + |L^T d|^2) grows."""
        far = linalg.lengths((seen.factor.transpose(1, 2) @ apart.unsqueeze(2)).squeeze(2))
        if self.neural.trust is None:
            return apart, far
        limit = self.neural.trust * seen.left
        shrink = (limit / far.clamp_min(torch.finfo(far.dtype).tiny)).clamp(max=1.0)
        return apart * shrink.unsqueeze(1), torch.minimum(far, limit)

    @override
    def choices(self) -> Tensor | None:
        """Evaluations `(samples, 2)` by learned weights and by Anderson's, at the end of an
        evaluation that no step has followed."""
        if self.neural.mixer is None or not self.evals:
            return None
        evals = torch.full_like(self.until, self.evals + 1)
        learned = torch.minimum(self.until, evals)
        return torch.stack([learned, evals - learned], 1)

    @override
    def select(self, index: Tensor) -> None:
        super().select(index)
        self.pooled = [each.index_select(0, index) for each in self.pooled]
        for name in ("first", "least", "stale", "until", "restart"):
            value = getattr(self, name)
            if value is not None and self.evals:
                setattr(self, name, value.index_select(0, index))
