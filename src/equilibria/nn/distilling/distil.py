"""Learn a solver for a layer, if it pays."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from equilibria.nn.deq import DEQ
from equilibria.nn.distilling.config import Distillation
from equilibria.nn.distilling.contest import Outcome, contest
from equilibria.nn.distilling.teacher import solve
from equilibria.nn.distilling.training import Progress, train, untrained
from equilibria.nn.modes import in_eval_mode
from equilibria.nn.neural import Learned
from equilibria.solve import AlternatingAnderson, NeuralSolver, Solver
from equilibria.solve.tree import flatten

__all__ = ["distil"]

HELD_OUT = 4
"""Of so many batches one is kept for the contest."""


def distil(
    layer: DEQ,
    batches: Iterable[Sequence[Any]],
    how: Distillation | None = None,
    *,
    begin: Learned | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Outcome:
    """Train a learned solver on a layer's own equilibria, and switch it on where that pays.

    No labels are needed: the inputs are solved by a classical solver, and start and mixer learn
    from what it finds. Each fourth batch is left out of that, and solved by the learned solver and
    by classical ones. A mixer that does not save a tenth of the evaluations is dropped. Where the
    learned solver takes at most nine tenths of the evaluations of the best classical one, and as
    many samples converge, `layer.neural` has its weights and `layer.eval_solver` is a
    `NeuralSolver`; else the layer is as it was.

    Args:
        layer: a trained layer. It is in eval mode meanwhile.
        batches: tuples of the layer's inputs, at least 2; all are kept in memory, with their
            equilibria.
        how: losses and steps; None for the defaults.
        begin: weights to go on from, as for inputs that differ from those before, which are left
            as they are: what is trained is a copy with its parts and their sizes, whatever `how`
            says of these. None for new ones.
        progress: called after each step with its number, the number of all steps and the loss.
        changes: fields of `how` that differ, such as `steps=200`.

    Returns:
        What the contest has shown; as a text, one sentence.

    Raises:
        TypeError: `layer` is no `DEQ`; a batch is a tensor and not a tuple of inputs.
        ValueError: the rows of the batch are coupled; there are fewer than 2 batches; fewer than
            half of the samples have an equilibrium; the state has other axes than a learned start
            can have.
        FloatingPointError: the gradient is not finite in more than half of the steps.

    Source:
        Bai 2022 (thesis), ch. 6; Bai, Koltun and Kolter 2022.

    Example:
        >>> outcome = eq.distil(model.deq, [model.inject(x) for x in inputs])
        >>> print(outcome)
    """
    how = replace(how or Distillation(), **changes)
    if not isinstance(layer, DEQ):
        raise TypeError(
            f"distil is of a DEQ, and was given a {type(layer).__name__}: of a model give its "
            "equilibrium layer, such as model.deq"
        )
    if layer.coupled:
        raise ValueError("a learned solver is of samples, and the rows of this layer are coupled")
    solver = layer.eval_solver or layer.solver
    if isinstance(solver, NeuralSolver):
        solver = _classical(layer, solver)
    with in_eval_mode(layer):
        pool = solve(layer, batches, how.teacher)
        if len(pool) < 2:
            raise ValueError(
                "distil needs 2 batches at least: one to learn from, one to compare on"
            )
        apart = pool[::HELD_OUT]
        rest = [each for index, each in enumerate(pool) if index % HELD_OUT]
        if begin is None:
            learned = untrained(layer, pool[0], how)
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
    """The layer's own solver in place of a learned one, with that one's tolerances and limits."""
    own = AlternatingAnderson() if isinstance(layer.solver, NeuralSolver) else layer.solver
    return cast(Solver, replace(cast(Any, own), **learned.limits))
