"""A solver with a learned initial guess and learned mixing weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol, final

import torch
from torch import Tensor
from typing_extensions import override

from equilibria import solve
from equilibria.solve import Anderson, Point, Rows, Solver, private

SMALLEST = 1e-30
"""Lower bound on lengths before a division or a logarithm."""

ROUNDING = 1e-6
"""Lower bound on the residual under Anderson's weights, relative to ||g||."""


@dataclass(frozen=True, kw_only=True)
class NeuralSolver(Anderson):
    """Anderson acceleration with a learned initial guess and learned mixing weights.

    The weights belong to a `DEQ`: `eq.distill` stores them in its `neural`. Layers that have them
    use this solver, usually in eval mode: `layer.eval_solver = NeuralSolver()`. Whatever the
    weights,

    - each step stores its difference as `Anderson` does, and after `horizon` evaluations `Anderson`
      continues with that history;
    - for a sample whose residual has not decreased for `fallback` evaluations, it does so at once,
      from the best iterate;
    - the mixed residual ||G alpha|| is at most sqrt(1 + `trust`^2) times its minimum, which
      `Anderson`'s weights attain;
    - a learned initial guess whose relative residual is above 1, that of zeros, is replaced by
      zeros;
    - status and residual are measured as for any other solver.

    With a mixer, `stats.choices` counts the evaluations of each sample with learned weights and
    with `Anderson`'s.

    History: that of `Anderson`.

    Attributes:
        history: number of differences kept, >= 1.
        period: evaluations between extrapolations once `Anderson` has taken over.
        horizon: number of evaluations that use learned weights, >= 1.
        fallback: evaluations without progress after which they are no longer used, >= 1.
        trust: bound on the correction, see above, and on |beta - 1|; None for no bound, as in the
            papers.

    Source:
        Bai 2022 (thesis), ch. 6 (Algorithm 3); Bai, Koltun and Kolter 2022. The fallback is ours.
    """

    history: int | None = solve.whole_field(5, 1)
    horizon: int = solve.whole_field(10, 1)
    fallback: int = solve.whole_field(3, 1)
    trust: float | None = solve.nonnegative_field(0.5)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history is None:
            raise ValueError("NeuralSolver(history=...): expected a whole number >= 1, got None")

    @override
    def start(self, tracked: bool, jacobian: object = None) -> solve.Stepper:
        raise TypeError(
            "NeuralSolver takes its weights from a layer: use it as the solver of a DEQ whose "
            "`neural` eq.distill has trained"
        )

    def with_weights(self, mixer: Mixer | None, *, guessed: bool) -> Solver:
        """Return this solver with weights.

        Args:
            mixer: predicts the mixing weights; None for `Anderson`'s.
            guessed: whether the initial guess is learned.
        """
        limits = {each.name: getattr(self, each.name) for each in fields(self)}
        return WithWeights(**limits, mixer=mixer, guessed=guessed)


@dataclass(frozen=True)
class MixerInputs:
    """Inputs of a mixer, from the latest evaluations, newest first.

    Attributes:
        factor: `(samples, s, s)` lower Cholesky factor L of the Gram matrix of the s differences of
            residuals dg_j.
        cosines: `(samples, s)` L^-1 of the products of the dg_j with the newest residual g, over
            ||g||: the cosines of the angles between g and the orthogonalised dg_j.
        gamma: `(samples, s)` Anderson's weights of the differences.
        left: `(samples,)` ||g - sum_j gamma_j dg_j|| with these weights.
        size: `(samples,)` ||g||.
        lengths: `(samples, s)` ||dg_j||.
        fall: `(samples,)` log of the ratio of ||g|| to the length of the first residual.
        pooled: `(samples, s + 1, features)` what `Mixer.pool` returned for the residuals.
    """

    factor: Tensor
    cosines: Tensor
    gamma: Tensor
    left: Tensor
    size: Tensor
    lengths: Tensor
    fall: Tensor
    pooled: Tensor | None


def solve_triangular(factor: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """Solve L x = b, or L^T x = b: L lower triangular `(batch, k, k)`, b `(batch, k)`."""
    triangular: Any = torch.linalg.solve_triangular
    matrix = factor.transpose(1, 2) if transposed else factor
    return triangular(matrix, right.unsqueeze(2), upper=transposed).squeeze(2)


class Mixer(Protocol):
    """Predicts the weights of a step."""

    def pool(self, residual: Rows, layout: solve.Layout | None) -> Tensor | None:
        """Return the features of a residual to keep, `(samples, features)`; None for none."""
        ...

    def mix(self, seen: MixerInputs) -> tuple[Tensor, Tensor | None]:
        """Return the weights of the differences, `(samples, s)`, which replace gamma, and beta,
        `(samples,)`, which multiplies the solver's damping; None for 1."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class WithWeights(NeuralSolver):
    """A neural solver with the weights of one layer."""

    mixer: Mixer | None
    guessed: bool

    @override
    def start(self, tracked: bool, jacobian: object = None) -> solve.Stepper:
        return NeuralStepper(self, tracked)


class NeuralStepper(solve.AndersonStepper):
    """Anderson's differences, combined with learned weights as long as these make progress.

    Without `Point.best`, as in training, progress is not monitored.
    """

    def __init__(self, solver: WithWeights, tracked: bool) -> None:
        super().__init__(solver, tracked)
        self.neural = solver
        self.looks_around = solver.mixer is not None
        self.pooled: list[Tensor] = []  # features of the residuals, newest first
        self.first = self.least = torch.empty(0)  # lengths of the first and the smallest residual
        self.stale = self.until = torch.empty(0)
        self.restart: Tensor | None = None  # samples that restart from zeros
        self.mixed: Tensor | None = None  # length of the mixed residual, if autograd tracks it

    @override
    def step(self, now: Point) -> Rows:
        if not self.evals:
            self._begin(now)
        plain = self.store(now)
        mixer, period = self.neural.mixer, self.neural.period
        if mixer is not None and self.evals <= self.neural.horizon:
            lost = None if now.best is None else self._find_lost(now)
            kept = mixer.pool(now.residual, self.layout)
            if kept is not None:
                self.pooled = [kept, *self.pooled[: self.stored]]
            out = self._combine(now, plain, mixer)
            if lost is not None and now.best is not None and private.some(lost):
                out = solve.choose(lost, now.best, out)
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
            # At zeros the residual is f(0), so its relative size is 1.
            worse = ~(now.size <= solve.length(now.f))
            self.restart = worse if private.some(worse) else None

    def _find_lost(self, now: Point) -> Tensor:
        """Samples that have made no progress for too long and return to their best iterate."""
        better = (now.size < self.least) if self.evals > 1 else torch.ones_like(self.stale).bool()
        self.least = torch.minimum(self.least, now.size)
        self.stale = torch.where(better, 0, self.stale + 1)
        lost = (self.stale >= self.neural.fallback) & (self.until > self.evals)
        self.until = torch.where(lost, self.evals, self.until)
        return lost

    def _combine(self, now: Point, plain: Rows, mixer: Mixer) -> Rows:
        """The step with learned weights, or with Anderson's for samples that no longer use them."""
        if not self.stored:
            return plain
        ages = range(self.stored)
        capacity = self.solver.history or self.stored
        slots = [(self.evals - 2 - age) % capacity for age in ages]  # the newest first
        gram, right = self.system()
        order = torch.tensor(slots, device=gram.device)
        right = right[:, order]
        own, factor = solve.minimizer(gram[:, order][:, :, order], right)
        # Zero residuals and rounding must not make a logarithm, a root or their slopes infinite.
        size = now.size.double().clamp_min(SMALLEST)
        white = solve_triangular(factor, right)
        left = (size.square() - white.square().sum(1)).clamp_min(0.0)
        left = torch.maximum(left, (ROUNDING * size).square()).sqrt()
        seen = MixerInputs(
            factor=factor,
            cosines=white / size.unsqueeze(1),
            gamma=own,
            left=left,
            size=size,
            lengths=solve.length([factor.flatten(0, 1)]).view(own.shape),
            fall=(size / self.first.double().clamp_min(SMALLEST)).log(),
            pooled=torch.stack(self.pooled, 1) if self.pooled else None,
        )
        gamma, beta = mixer.mix(seen)
        apart, far = self._shorten(gamma - own, seen)
        usable = torch.isfinite(apart).all(1)
        if beta is not None:
            if self.neural.trust is not None:
                beta = beta.clamp(1 - self.neural.trust, 1 + self.neural.trust)
            usable = usable & torch.isfinite(beta)
        if now.best is not None:
            usable = usable & (self.until > self.evals)
        if self.tracked:
            self.mixed = (seen.left.square() + far.square()).sqrt()
        gamma = torch.where(usable.unsqueeze(1), own + apart, own)
        gamma = gamma[:, torch.argsort(order)].to(self.dtype)
        out = self.moves.combine(gamma, 0, onto=plain, scale=-1.0)
        if beta is None:
            return out
        # With damping d, `out` is z + d g, both mixed, but z + beta d g is needed.
        beta = torch.where(usable, beta, 1.0).to(self.dtype)
        mixed = self.residuals.combine(gamma, solve.ROOM, onto=now.residual, scale=-1.0)
        return solve.add_scaled(out, self.neural.damping * (beta - 1), mixed)

    def _shorten(self, apart: Tensor, seen: MixerInputs) -> tuple[Tensor, Tensor]:
        """The correction d of Anderson's weights, shortened to the trusted length, and |L^T d|: the
        mixed residual is ||G (gamma + d)|| = sqrt(left^2 + |L^T d|^2)."""
        far = solve.length([(seen.factor.transpose(1, 2) @ apart.unsqueeze(2)).squeeze(2)])
        if self.neural.trust is None:
            return apart, far
        limit = self.neural.trust * seen.left
        shrink = (limit / far.clamp_min(torch.finfo(far.dtype).tiny)).clamp(max=1.0)
        return apart * shrink.unsqueeze(1), torch.minimum(far, limit)

    @override
    def choices(self) -> Tensor | None:
        """Return the evaluations with learned and with Anderson's weights, `(samples, 2)`, after an
        evaluation that no step has followed yet."""
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
            if value is not None:
                setattr(self, name, value.index_select(0, index))
