"""Training of an initial guess and a mixer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.checks import check_fields
from equilibria.learned.initializers import initializer_for
from equilibria.learned.mixers import GramMixer, PooledMixer, pool_leaf
from equilibria.learned.solver import NeuralSolver, NeuralStepper
from equilibria.learned.weights import Learned
from equilibria.nn.deq import DEQ
from equilibria.nn.frozen import Evaluation, module_of
from equilibria.nn.using import using
from equilibria.solve import (
    Anderson,
    Layout,
    Point,
    Rows,
    Shared,
    Solver,
    Status,
    Tolerance,
    Tree,
    flatten,
    length,
    unflatten,
)
from equilibria.words import percent

# --- config ---------------------------------------------------------------------------------------

# Options for training a learned solver.


MIXERS = Literal["gram", "pooled"]
LOSSES = Literal["residual", "error"]
WEIGHTS = Literal["increasing", "uniform", "last"]
NORMALIZED = Literal["shift", "softmax", "none"]
PREDICTS = Literal["both", "alpha", "beta"]


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Options for training a learned solver.

    The loss of a step, with z_0 the learned initial guess, z_1, ... the iterates, z* the classical
    solution and K the horizon, is the mean over samples of

        residual:  sum_k w_k log(||f(z_k) - z_k|| / ||f(z_k)||) + b ||z_0 - z*|| / ||z*||
        error:     a sum_k w_k ||z_k - z*|| / ||z*|| + b ||z_0 - z*|| / ||z*||
                   + c sum_k ||G_k alpha_k|| / ||z*||

    The second is the papers', with norms relative to that of z*. c decreases linearly to 5e-8 over
    the first two fifths of the steps.

    Args:
        start_steps: steps in which the initial guess is trained alone, on ||z_0 - z*|| / ||z*||,
            which needs no evaluation of f.
        steps: subsequent steps, on the loss above, backpropagated through all K evaluations. They
            are undone if the loss is larger at their end than at their beginning.
        horizon: K.
        history: number of differences kept, m in the papers.
        initialiser: whether an initial guess is learned.
        mixer: "gram" (ours), "pooled" (the papers'), or None for Anderson's own weights.
        normalised, predicts: options of the papers' mixer; see `PooledMixer`.
        loss: "residual" (ours) or "error".
        weights: w_k, which sum to 1 over k = 1, ..., K, and w_0 = 0: "increasing" (in proportion
            to k), "uniform" or "last".
        error, start, mixed: a, b and c.
        budget: maximum number of parameters of the initial guess; None for 3 % of those of the
            layer's cell.
        lr: the learning rate of Adam, which follows a cosine decay to zero in each phase.
        teacher: the classical solver that finds z*; samples for which it does not converge are left
            out of training. None for `Anderson(rtol=1e-4, max_evals=100)`; if fewer than half of
            the samples reach that tolerance, a tenth of the layer's own is used instead, with a
            warning.
        seed: for the initial weights and the order of the batches.

    Raises:
        ValueError: a field is out of range, or there is nothing to learn.
        TypeError: the teacher is not a classical solver.

    Source:
        Bai 2022 (thesis), sec. 6.2.2; Bai, Koltun and Kolter 2022, appendix A. The loss on
        residuals and training the initial guess alone are ours.
    """

    start_steps: int = 800
    steps: int = 60
    horizon: int = 10
    history: int = 5
    initialiser: bool = True
    mixer: MIXERS | None = "gram"
    normalised: NORMALIZED = "shift"
    predicts: PREDICTS = "both"
    loss: LOSSES = "residual"
    weights: WEIGHTS = "increasing"
    error: float = 0.1
    start: float = 0.05
    mixed: float = 1e-4
    budget: int | None = None
    lr: float = 1e-2
    teacher: Solver | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "[0, inf)", "start_steps", "steps", "error", "start", "mixed")
        check_fields(self, "[1, inf)", "horizon", "history", "budget")
        for name, known in (
            ("loss", LOSSES),
            ("weights", WEIGHTS),
            ("normalised", NORMALIZED),
            ("predicts", PREDICTS),
        ):
            if getattr(self, name) not in get_args(known):
                words = " or ".join(get_args(known))
                raise ValueError(f"{name} must be {words}; got {getattr(self, name)}")
        if self.mixer is not None and self.mixer not in get_args(MIXERS):
            raise ValueError(f"mixer must be gram, pooled or None; got {self.mixer}")
        check_fields(self, "(0, inf)", "lr")
        if self.teacher is not None and (
            not isinstance(self.teacher, Solver) or isinstance(self.teacher, NeuralSolver)
        ):
            raise TypeError(
                f"teacher must be a classical solver such as eq.Anderson(); got {self.teacher!r}"
            )
        if not self.initialiser and self.mixer is None:
            raise ValueError("there is nothing to learn: neither an initial guess nor a mixer")

    def weight(self, k: int) -> float:
        """w_k, for k from 0 to the horizon."""
        K = self.horizon
        if self.weights == "increasing":
            return 2 * k / (K * (K + 1))
        if self.weights == "uniform":
            return float(k > 0) / K
        return float(k == K)


# --- teacher --------------------------------------------------------------------------------------

# The equilibria on which a solver is trained.


USUAL = 1e-4
TEACHER = Anderson(rtol=USUAL, max_evals=100)
"""The default teacher."""

CLOSER = 10
"""Factor by which equilibria to learn from must be more accurate than the layer's own tolerance,
where `TEACHER` does not reach its own."""

_LEAST_SAMPLES = 0.5
"""Smallest fraction of samples that must have an equilibrium."""


@dataclass(frozen=True)
class Solved:
    """A batch and its equilibria.

    Attributes:
        inputs: of the layer.
        own: the layer's own initial state.
        value: z*.
        kept: `(batch,)` bool, the samples for which the classical solver converged.
    """

    inputs: tuple[Any, ...]
    own: Tree
    value: Tree
    kept: Tensor

    def drop_unsolved(self) -> Solved:
        """Return the samples that are kept. Masking the loss would not do: for a diverged sample, a
        zero gradient becomes NaN when it is backpropagated through values that overflowed."""
        if bool(self.kept.all()):
            return self
        inputs = tuple(x if isinstance(x, Shared) else self._of(x) for x in self.inputs)
        kept = self.kept[self.kept]
        return Solved(inputs, self._of(self.own), self._of(self.value), kept)

    def _of(self, tree: Tree) -> Tree:
        return pytree.tree_map_only(Tensor, lambda x: x[self.kept], tree)


def solve(layer: DEQ, batches: Iterable[Sequence[Any]], teacher: Solver | None) -> list[Solved]:
    """Return batches of a layer's inputs with the equilibria that a classical solver finds.

    Args:
        layer: in eval mode.
        batches: tuples of the layer's inputs.
        teacher: the solver; None for the default, see `Distillation`.

    Raises:
        TypeError: a batch is a tensor and not a tuple of the layer's inputs.
        ValueError: there are no batches, or fewer than half of all samples converge.

    Warns:
        UserWarning: the default teacher converges for fewer than half of the samples, but for at
            least half at a tenth of the layer's own tolerance.
    """
    several = [_tuple(each) for each in batches]
    if not several:
        raise ValueError("there are no batches to learn a solver from")
    by = TEACHER if teacher is None else teacher
    found = _solve_pool(layer, several, by)
    looser = replace(TEACHER, rtol=_closer((layer.eval_solver or layer.solver).rtol))
    if teacher is None and _share(found) < _LEAST_SAMPLES and looser != TEACHER:
        again = _solve_pool(layer, several, looser)
        if _share(again) >= _LEAST_SAMPLES:
            warnings.warn(
                f"{percent(_share(found))} of the samples converge to {TEACHER.rtol} within "
                f"{TEACHER.max_evals} evaluations, {percent(_share(again))} to {looser.rtol}, a "
                "tenth of the layer's own tolerance: equilibria at that tolerance are used",
                stacklevel=2,
            )
        by, found = looser, again
    if _share(found) < _LEAST_SAMPLES:
        kept, total = _count_kept(found)
        raise ValueError(
            f"only {kept} of {total} samples have an equilibrium to learn from: {by} did not "
            "converge for the others. Try another teacher, more evaluations or a larger tolerance"
        )
    return found


def _closer(tolerance: Tolerance) -> Tolerance:
    """A tenth of a layer's tolerance, but not below the default teacher's."""
    if isinstance(tolerance, dict):
        return {name: max(each / CLOSER, USUAL) for name, each in tolerance.items()}
    if isinstance(tolerance, tuple):
        return tuple(max(each / CLOSER, USUAL) for each in tolerance)
    return max(tolerance / CLOSER, USUAL)


def _tuple(batch: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(batch, Tensor):
        raise TypeError(
            "a batch is a tuple of the layer's inputs, but this is a tensor of shape "
            f"{tuple(batch.shape)}: pass (x,) instead of x"
        )
    # Their autograd graph would be kept alive throughout training.
    return pytree.tree_map_only(Tensor, Tensor.detach, tuple(batch))


@torch.no_grad()
def _solve_pool(layer: DEQ, batches: Sequence[tuple[Any, ...]], teacher: Solver) -> list[Solved]:
    found: list[Solved] = []
    with using(layer, eval_solver=teacher):
        for inputs in batches:
            sol = layer(*inputs)
            start = layer.start(*inputs)
            found.append(Solved(inputs, start, sol.value, sol.status == Status.CONVERGED))
    return found


def _count_kept(found: Sequence[Solved]) -> tuple[int, int]:
    """Return the number of samples with an equilibrium, and the total."""
    return sum(int(each.kept.sum()) for each in found), sum(len(each.kept) for each in found)


def _share(found: Sequence[Solved]) -> float:
    kept, total = _count_kept(found)
    return kept / total


# --- training -------------------------------------------------------------------------------------


Progress = Callable[[int, int, float], None]
"""Called with the number of the step, the total number of steps and the loss."""

TINY = 1e-30
SHARE = 0.03  # of the cell's parameters, for an initial guess
LEAST = 5e-8  # final weight of the mixed residual
JUDGED = 4  # batches that decide whether the steps through unrolled solves are kept


@torch.enable_grad()
def train(
    learned: Learned,
    layer: DEQ,
    pool: Sequence[Solved],
    how: Distillation,
    progress: Progress | None = None,
) -> None:
    """Train a learned solver in place; the layer's own weights receive no gradient.

    Args:
        learned: the solver's weights.
        layer: in eval mode.
        pool: batches, in shuffled order; samples without a z* are left out.
        how: losses and steps.
        progress: called after each step.

    Raises:
        ValueError: no sample has an equilibrium.
        FloatingPointError: the gradient is not finite in more than half of the steps.
    """
    lessons = [batch.drop_unsolved() for batch in pool if batch.kept.any()]
    if not lessons:
        raise ValueError("none of the samples to learn from has an equilibrium")
    generator = torch.Generator().manual_seed(how.seed)
    total = how.start_steps * (learned.initialiser is not None) + how.steps
    done = 0

    def tell(loss: float) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, loss)

    if learned.initialiser is not None:
        _descend(
            learned.initialiser,
            lambda batch, _: _distance(_guess(learned, batch), batch),
            *(lessons, how.start_steps, how.lr, generator, tell),
        )
    if not how.steps:
        return
    before = copy.deepcopy(learned.state_dict())
    judged = [partial(_loss, learned, layer, each, how, 1.0) for each in lessons[:JUDGED]]
    least = _mean(judged)
    _descend(
        learned,
        lambda batch, share: _loss(learned, layer, batch, how, share),
        *(lessons, how.steps, how.lr, generator, tell),
    )
    # Late residuals depend little on the initial guess, which a few steps can ruin.
    if not _mean(judged) <= least:
        learned.load_state_dict(before)


def make_untrained(layer: DEQ, example: Solved, how: Distillation) -> Learned:
    """Return an untrained learned solver: Anderson's method from the layer's own initial state.

    Args:
        layer: the size of its cell determines that of the initial guess.
        example: a batch, for the shapes.
        how: what is to be learned.

    Raises:
        ValueError: there is no learned initial guess for such a state; see `initializer_for`.
    """
    leaves = flatten(example.value)[0]
    owner = module_of(layer.cell)
    size = sum(p.numel() for p in owner.parameters()) if owner is not None else 0
    initialiser, mixer = None, None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        if how.initialiser:
            budget = int(SHARE * size) if how.budget is None else how.budget
            initialiser = initializer_for(example.inputs, example.own, budget)
        if how.mixer == "gram":
            mixer = GramMixer(how.history)
        elif how.mixer == "pooled":
            features = sum(pool_leaf(leaf[:1]).shape[1] for leaf in leaves)
            mixer = PooledMixer(features, normalised=how.normalised, predicts=how.predicts)
    return Learned(initialiser, mixer).to(leaves[0])


def _descend(
    module: nn.Module,
    loss_of: Callable[[Solved, float], Tensor],
    pool: Sequence[Solved],
    steps: int,
    lr: float,
    generator: torch.Generator,
    tell: Callable[[float], None],
) -> None:
    parameters = list(module.parameters())
    if not (steps and parameters):
        return
    optimizer = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order: list[int] = []
    skipped = 0
    for step in range(steps):
        order = order or torch.randperm(len(pool), generator=generator).tolist()
        loss = loss_of(pool[order.pop()], step / steps)
        # Not backward: the layer's own weights must receive no gradient.
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        if not torch.isfinite(nn.utils.clip_grad_norm_(parameters, 1.0)):
            skipped += 1  # an unrolled solve may overflow
            optimizer.zero_grad()  # so that Adam skips the step
        optimizer.step()
        schedule.step()
        tell(float(loss.detach()))
    if 2 * skipped > steps:
        raise FloatingPointError(f"the gradient is not finite in {skipped} of {steps} steps")


@torch.no_grad()
def _mean(losses: Sequence[Callable[[], Tensor]]) -> float:
    return sum(float(loss()) for loss in losses) / len(losses)


def _guess(learned: Learned, batch: Solved) -> Rows:
    start = batch.own
    if learned.initialiser is not None:
        start = learned.initialiser(batch.inputs, batch.own)
    return flatten(start)[0]


def _distance(leaves: Sequence[Tensor], batch: Solved) -> Tensor:
    """The mean of ||z - z*|| / ||z*|| over samples that all have a z*."""
    goal = [leaf.flatten(1) for leaf in flatten(batch.value)[0]]
    apart = [leaf.flatten(1) - at for leaf, at in zip(leaves, goal, strict=True)]
    return (length(apart) / length(goal).clamp_min(TINY)).mean()


def _loss(learned: Learned, layer: DEQ, batch: Solved, how: Distillation, share: float) -> Tensor:
    """The loss of one unrolled solve; `share` of the steps are done."""
    z = _guess(learned, batch)
    spec = flatten(batch.own)[1]
    f = Evaluation(layer.cell, None)  # the same function in all evaluations
    operands = [x.value if isinstance(x, Shared) else x for x in batch.inputs]
    layout = Layout.of(z)
    solver = NeuralSolver(history=how.history, horizon=how.horizon, trust=None)
    stepper = learned.bind(solver, started=False).start(True, None)
    assert isinstance(stepper, NeuralStepper)
    stepper.layout = layout
    goal = length([leaf.flatten(1) for leaf in flatten(batch.value)[0]]).clamp_min(TINY)
    loss = (
        how.start * _distance(z, batch) if learned.initialiser is not None else z[0].new_zeros(())
    )
    decay = max(1 - share / 0.4, min(1.0, LEAST / how.mixed)) if how.mixed else 0.0
    z = layout.rows(z)
    for k in range(how.horizon + 1):
        if how.loss == "error" and k:
            loss = loss + how.error * how.weight(k) * _distance(layout.leaves(z), batch)
            if k == how.horizon:
                break  # f(z_K) is not needed
        at = unflatten(layout.leaves(z), spec)
        out = f(at, *operands)
        image = layout.rows(flatten(out[0] if layer.has_aux else out)[0])
        residual = stepper.residual(image, z)
        size = length(residual)
        if how.loss == "residual":
            relative = size / length(image).clamp_min(TINY)
            loss = loss + how.weight(k) * relative.clamp_min(1e-12).log().mean()
        if k == how.horizon:
            break
        z = stepper.step(Point(z, image, residual, size))
        if how.loss == "error" and stepper.mixed is not None:
            mixed = (stepper.mixed / goal).mean()
            loss = loss + how.mixed * decay * mixed
    return loss
