"""Train a learned solver for a layer, and enable it if it pays off."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from equilibria.learned.contest import Outcome, contest
from equilibria.learned.solver import NeuralSolver
from equilibria.learned.training import Distillation, Progress, make_untrained, solve, train
from equilibria.learned.weights import Learned
from equilibria.nn.deq import DEQ
from equilibria.nn.using import in_eval_mode
from equilibria.solve import Auto, Solver, flatten

HELD_OUT = 4
"""One in this many batches is held out for the contest."""


def distill(
    layer: DEQ,
    batches: Iterable[Sequence[Any]],
    how: Distillation | None = None,
    *,
    begin: Learned | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Outcome:
    """Train a learned solver on a layer's own equilibria, and enable it if it pays off.

    No labels are needed: the inputs are solved by a classical solver, and an initial guess and a
    mixer are trained on its equilibria. Every fourth batch is held out, and solved by the learned
    solver and by classical ones. A mixer that does not save a tenth of the evaluations is dropped.
    If the learned solver takes at most nine tenths of the evaluations of the best classical one,
    and as many samples converge, `layer.neural` is set to its weights and `layer.eval_solver` to a
    `NeuralSolver`; otherwise the layer is left unchanged.

    Args:
        layer: a trained layer. It is in eval mode meanwhile.
        batches: tuples of the layer's inputs, at least 2; all are kept in memory, with their
            equilibria.
        how: losses and steps; None for the defaults.
        begin: weights to continue from, for example on different inputs. A copy of them is
            trained, with the same architecture, whatever `how` says. None for new weights.
        progress: called after each step with its number, the total number of steps and the loss.
        changes: fields of `how` to change, such as `steps=200`.

    Returns:
        The result of the contest; `str` of it is a short summary.

    Raises:
        TypeError: `layer` is not a `DEQ`; a batch is a tensor and not a tuple of inputs.
        ValueError: the rows of the batch are coupled; there are fewer than 2 batches; fewer than
            half of the samples have an equilibrium; there is no learned initial guess for a state
            of this shape.
        FloatingPointError: the gradient is not finite in more than half of the steps.

    Source:
        Bai 2022 (thesis), ch. 6; Bai, Koltun and Kolter 2022.

    Example:
        >>> outcome = eq.distill(model.deq, [model.inject(x) for x in inputs])
        >>> print(outcome)
    """
    how = replace(how or Distillation(), **changes)
    if not isinstance(layer, DEQ):
        raise TypeError(
            f"distil expects a DEQ, but was given a {type(layer).__name__}: for a model, pass its "
            "equilibrium layer, such as model.deq"
        )
    if layer.coupled:
        raise ValueError(
            "a learned solver needs independent samples, but the rows of this layer are coupled"
        )
    solver = layer.eval_solver or layer.solver
    if isinstance(solver, NeuralSolver):
        solver = _classical(layer, solver)
    with in_eval_mode(layer):
        pool = solve(layer, batches, how.teacher)
        if len(pool) < 2:
            raise ValueError(
                "distil needs at least 2 batches: one for training, one for the comparison"
            )
        apart = pool[::HELD_OUT]
        rest = [each for index, each in enumerate(pool) if index % HELD_OUT]
        if begin is None:
            learned = make_untrained(layer, pool[0], how)
        else:
            learned = copy.deepcopy(begin).to(flatten(pool[0].value)[0][0])
        learned.requires_grad_(True)
        train(learned, layer, rest, how, progress)
        learned.requires_grad_(False)
        held_out = [each.inputs for each in apart]
        outcome = contest(layer, learned, held_out, solver, how.horizon, history=how.history)
    if outcome.worth:
        layer.neural = outcome.learned.learned
        layer.eval_solver = outcome.learned.solver
    kept = torch.cat([each.kept for each in pool])
    return replace(outcome, samples=len(kept), dropped=int((~kept).sum()))


def _classical(layer: DEQ, learned: NeuralSolver) -> Solver:
    """The layer's own solver, with the tolerances and limits of the learned one it replaces."""
    own = Auto() if isinstance(layer.solver, NeuralSolver) else layer.solver
    return cast(Solver, replace(cast(Any, own), **learned.limits))
