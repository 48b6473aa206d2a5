"""The learned solver of a run: neural.safetensors has its weights, neural.json all else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.models import EquilibriumModel, Model
from equilibria.nn import using
from equilibria.nn.distilling import Distillation, Outcome
from equilibria.nn.neural import Learned
from equilibria.solve import NeuralSolver, Picard, Solver
from equilibria.tasks import Task
from equilibria.train import files
from equilibria.train.checkpoint import CheckpointError
from equilibria.train.run import Folder, RunError
from equilibria.train.weights import checksum, read_weights, save_weights

__all__ = ["attach", "budgeted", "inputs_from", "inputs_of", "known", "save", "size_of", "starts"]

WEIGHTS, ABOUT = "neural.safetensors", "neural.json"
FORMAT = 1
SHARE = 0.03
OWN = ("history", "damping", "ridge", "period", "horizon", "fallback", "trust")
"""What a neural solver has beside the limits, which are those of the run's own solver."""


def save(folder: Folder, outcome: Outcome, about: Mapping[str, Any]) -> Path:
    """Write the learned solver of a run into its folder, in place of one that is there.

    Args:
        folder: of the run.
        outcome: has weights and solver.
        about: of the distillation, for neural.json.

    Returns:
        The path of neural.json.
    """
    learned, solver = outcome.learned.learned, outcome.learned.solver
    assert learned is not None and isinstance(solver, NeuralSolver)
    path = folder.path / ABOUT
    save_weights(folder.path / WEIGHTS, learned)
    files.write_json(
        path,
        {
            "format": FORMAT,
            "distilled_from": checksum(folder.weights),
            "weights": checksum(folder.path / WEIGHTS),
            "learned": learned.about,
            "solver": {name: asdict(solver)[name] for name in OWN},
            **about,
        },
    )
    return path


def known(folder: Folder) -> bool:
    """Return whether a run has a learned solver."""
    return (folder.path / ABOUT).is_file()


def attach(folder: Folder, model: Model) -> EquilibriumModel:
    """Let a run's model solve by its learned solver in eval mode, and return it.

    Args:
        folder: of the run.
        model: with the run's weights.

    Raises:
        RunError: the run has no learned solver, or one of other weights than its own.
        CheckpointError: its files are damaged.
    """
    path, weights = folder.path / ABOUT, folder.path / WEIGHTS
    if not isinstance(model, EquilibriumModel):
        raise RunError(f"{folder.path} is the run of an explicit network, which has no solver")
    if not path.is_file():
        raise RunError(
            f"{folder.path} has no learned solver: train one with `equilibria distil {folder.path}`"
        )
    try:
        about = json.loads(path.read_text())
        if (version := about["format"]) != FORMAT:
            raise RunError(f"{path} is of format {version}, and this version reads {FORMAT}")
        with torch.device("meta"):  # no memory for sizes that the weights may not have
            learned = Learned.of(about["learned"])
        usual = model.deq.eval_solver or model.deq.solver
        solver = NeuralSolver(**{name: about["solver"][name] for name in OWN}, **usual.limits)
        source, digest = about["distilled_from"], about["weights"]
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        if isinstance(error, RunError):
            raise
        raise CheckpointError(f"{path} is damaged ({error}): {_again(folder)}") from None
    if source != checksum(folder.weights):
        raise RunError(
            f"the learned solver in {folder.path} was distilled from other weights than the run "
            f"has now: {_again(folder)}"
        )
    state = read_weights(weights, _again(folder))
    if digest != checksum(weights):
        raise CheckpointError(f"{weights} and {path} are of different solvers: {_again(folder)}")
    try:
        learned.load_state_dict(state, assign=True)
    except RuntimeError as error:
        what = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{weights} does not fit {path} ({what}): {_again(folder)}") from None
    if not all(bool(torch.isfinite(each).all()) for each in state.values()):
        raise CheckpointError(f"{weights} has weights that are not finite: {_again(folder)}")
    model.deq.neural = learned.requires_grad_(False)
    model.deq.eval_solver = solver
    return model


def starts(model: Model) -> bool:
    """Return whether a model's solves in eval mode begin at a learned start."""
    if not isinstance(model, EquilibriumModel):
        return False
    layer = model.deq
    learned = layer.neural is not None and layer.neural.initialiser is not None
    return learned and isinstance(layer.eval_solver, NeuralSolver)


def budgeted(how: Distillation, model: EquilibriumModel) -> Distillation:
    """Return how a run's solver is learned: where no number of parameters is given, a start has 3 %
    of the model's without embeddings.

    Args:
        how: as asked for.
        model: of the run.
    """
    if how.budget is not None:
        return how
    return replace(how, budget=max(1, int(SHARE * size_of(model))))


def size_of(model: EquilibriumModel) -> int:
    """Return the number of parameters of a model, without embeddings and a learned solver's."""
    left_out = {id(p) for p in (model.deq.neural or nn.Module()).parameters()}
    for module in model.modules():
        if "embedding" in type(module).__name__.lower():
            left_out |= {id(p) for p in module.parameters(recurse=False)}
    return sum(p.numel() for p in model.parameters() if id(p) not in left_out)


def inputs_of(
    model: EquilibriumModel, task: Task, *, batches: int, batch_size: int, seed: int, other: bool
) -> list[tuple[Any, ...]]:
    """Return inputs of a model's equilibrium layer, batch by batch.

    Args:
        model: in eval mode.
        task: whose training data it is given; or, of other data, the test data.
        batches: how many, at most.
        batch_size: rows of each.
        seed: of their order.
        other: whether the data are not those of the run.
    """
    feed = None if other else task.feed(batch_size, seed)
    if feed is not None:
        stream = (feed.batch(step) for step in range(min(batches, feed.steps)))
    else:
        stream = task.batches("test", batch_size)
    device = next(model.parameters()).device
    found: list[tuple[Any, ...]] = []
    carry = None
    # What a text model carries over is its equilibrium; of others one evaluation is enough.
    with _seen(model, found, None if task.streams else Picard(max_evals=1)):
        for batch in stream:
            inputs = pytree.tree_map_only(Tensor, lambda x: x.to(device), batch.inputs)
            carry = model(inputs, carry=None if batch.begins else carry).carry
            if len(found) >= batches:
                break
    return found[:batches]


def inputs_from(model: EquilibriumModel, stream: Iterable[Tensor]) -> list[tuple[Any, ...]]:
    """Return the inputs of a model's equilibrium layer for batches of the model's own inputs.

    Args:
        model: in eval mode.
        stream: batches, on any device.
    """
    found: list[tuple[Any, ...]] = []
    where = next(model.parameters()).device
    with _seen(model, found, Picard(max_evals=1)):
        for inputs in stream:
            model(inputs.to(where))
    return found


@contextmanager
def _seen(
    model: EquilibriumModel, found: list[tuple[Any, ...]], solver: Solver | None
) -> Iterator[None]:
    """Keep the inputs of a model's equilibrium layer, which solves by `solver` meanwhile."""

    def keep(module: Any, inputs: Sequence[Any]) -> None:
        found.append(tuple(inputs))

    handle = model.deq.register_forward_pre_hook(keep)
    try:
        with torch.no_grad(), using(model, eval_solver=solver):
            yield
    finally:
        handle.remove()


def _again(folder: Folder) -> str:
    return f"train a new one with `equilibria distil {folder.path} --overwrite`"
