"""Training of an initial guess and a mixer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from equilibria.learned.config import Distillation
from equilibria.learned.initialisers import initialiser_for
from equilibria.learned.mixers import GramMixer, PooledMixer, pooled
from equilibria.learned.solver import NeuralSolver, NeuralStepper
from equilibria.learned.teacher import Solved
from equilibria.learned.weights import Learned
from equilibria.nn.deq import DEQ
from equilibria.nn.frozen import Evaluation, module_of
from equilibria.solve import Layout, Point, Rows, Shared, flatten, length, unflatten

__all__ = ["Progress", "train", "untrained"]

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
    lessons = [batch.teaching() for batch in pool if batch.kept.any()]
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
            lambda batch, _: _distance(_started(learned, batch), batch),
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


def untrained(layer: DEQ, example: Solved, how: Distillation) -> Learned:
    """Return an untrained learned solver: Anderson's method from the layer's own initial state.

    Args:
        layer: the size of its cell determines that of the initial guess.
        example: a batch, for the shapes.
        how: what is to be learned.

    Raises:
        ValueError: there is no learned initial guess for such a state; see `initialiser_for`.
    """
    leaves = flatten(example.value)[0]
    owner = module_of(layer.cell)
    size = sum(p.numel() for p in owner.parameters()) if owner is not None else 0
    initialiser, mixer = None, None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        if how.initialiser:
            budget = int(SHARE * size) if how.budget is None else how.budget
            initialiser = initialiser_for(example.inputs, example.own, budget)
        if how.mixer == "gram":
            mixer = GramMixer(how.history)
        elif how.mixer == "pooled":
            features = sum(pooled(leaf[:1]).shape[1] for leaf in leaves)
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
    optimiser = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
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
            optimiser.zero_grad()  # so that Adam skips the step
        optimiser.step()
        schedule.step()
        tell(float(loss.detach()))
    if 2 * skipped > steps:
        raise FloatingPointError(f"the gradient is not finite in {skipped} of {steps} steps")


@torch.no_grad()
def _mean(losses: Sequence[Callable[[], Tensor]]) -> float:
    return sum(float(loss()) for loss in losses) / len(losses)


def _started(learned: Learned, batch: Solved) -> Rows:
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
    z = _started(learned, batch)
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
