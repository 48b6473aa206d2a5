"""Memory of training steps of a network, with the Jacobian penalty and without."""

import copy
import warnings
from typing import Any

from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.run import memory
from equilibria.run.models import Model
from equilibria.run.studies.study import Context
from equilibria.run.tasks import Batch, Task
from equilibria.solve import Adjoint, Solver, SolveWarning
from equilibria.stability import jacobian_penalty


def step_memory(context: Context, *, nearest: int | None = None) -> dict[str, int]:
    """Bytes of a training step of a finished run; none of one that diverged.

    `step_bytes`: of an equilibrium network the largest at any depth of `run.memory`, or those at
    the depth nearest to `nearest`; `penalised_bytes`, where the recipe has the Jacobian penalty:
    of a step with it, its solves as they are.
    """
    run = context.run
    if run.diverged:
        return {}
    model, recipe = run.load().model, run.recipe
    batch = run.task.feed(recipe.rows, recipe.seed).batch(0)
    depths = [each for each in memory.settings(model) if each.kind in ("deq", "explicit")]
    if nearest is not None:
        depths = [min(depths, key=lambda each: abs(each.evals - nearest))]
    peaks = [step_bytes(model, run.task, batch, solver=each.solver) for each in depths]
    found = {"step_bytes": max(peaks)}
    if recipe.regularizer is not None:
        found["penalised_bytes"] = step_bytes(model, run.task, batch, penalized=True)
    return found


def step_bytes(
    model: Model,
    task: Task,
    batch: Batch,
    *,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    penalized: bool = False,
) -> int:
    """Return the peak of forward and backward minus parameters and gradients, in bytes.

    In float32, without autocast, on the device of the model, which is copied; with `solver` and
    `adjoint` in place of its own, and with the Jacobian penalty if `penalised`. For a sequence
    model the body is measured, without embedding and softmax, on a batch that follows another.
    """
    device = next(model.parameters()).device
    inputs, targets = pytree.tree_map(lambda x: x.to(device), (batch.inputs, batch.targets))
    body = model.strip_to_body(inputs)
    alone = body is not model
    twin = body if alone else copy.deepcopy(model)
    twin.train()

    def step(carry: Any = None) -> Any:
        prediction = twin(inputs, carry=carry)
        output = prediction.output
        loss = output.square().mean() if alone else task.loss(twin, output, targets)
        if penalized:
            loss = loss + sum(jacobian_penalty(each) for each in prediction.solutions)
        loss.backward()
        return prediction.carry

    with warnings.catch_warnings(), using(twin, solver=solver, adjoint=adjoint):
        warnings.simplefilter("ignore", SolveWarning)  # a solve stopped early is what is asked for
        carry = step()  # which allocates the gradients
        return memory.peak_bytes(lambda: step(carry), device)
