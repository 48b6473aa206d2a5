"""The learned solver of a run: its weights in neural.safetensors, the rest in neural.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equilibria import files
from equilibria.learned import Distillation, Learned, Outcome
from equilibria.learned.solver import NeuralSolver
from equilibria.nn import using
from equilibria.run.checkpoint import CheckpointError
from equilibria.run.data import storage
from equilibria.run.models import EquilibriumModel, Model
from equilibria.run.records import Learner
from equilibria.run.run import Folder, RunError
from equilibria.run.tasks import Task
from equilibria.run.trees import to_device
from equilibria.run.weights import checksum, misfit, read_weights, save_weights
from equilibria.solve import Picard, Solver

WEIGHTS, ABOUT = "neural.safetensors", "neural.json"
FORMAT = 1
SHARE = 0.03
OWN = ("history", "damping", "ridge", "period", "horizon", "fallback", "trust")
"""Fields of a neural solver other than its limits, which are those of the run's own solver."""


def save(folder: Folder, outcome: Outcome, about: Mapping[str, Any]) -> Path:
    """Write the learned solver of a run into its folder, replacing an existing one.

    Args:
        folder: of the run.
        outcome: holds the weights and the solver.
        about: further entries of neural.json, on the distillation.

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


def exists(folder: Folder) -> bool:
    """Return whether a run has a learned solver."""
    return (folder.path / ABOUT).is_file()


def identity(folder: Folder) -> str:
    """Return the SHA-256 of all that decides what a run's learned solver does: the checksum of its
    weights, its architecture and its settings.

    Args:
        folder: of a run whose learned solver has been attached.
    """
    about = storage.read(folder.path / ABOUT, Learner)
    decisive = {key: about[key] for key in ("weights", "learned", "solver")}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def attach(folder: Folder, model: Model) -> EquilibriumModel:
    """Make a run's model use its learned solver in eval mode, and return the model.

    Args:
        folder: of the run.
        model: with the run's weights.

    Raises:
        RunError: the run has no learned solver, or one distilled from other weights.
        CheckpointError: its files are damaged.
    """
    path, weights = folder.path / ABOUT, folder.path / WEIGHTS
    if not isinstance(model, EquilibriumModel):
        raise RunError(f"{folder.path} is a run of an explicit network, which has no solver")
    if not path.is_file():
        raise RunError(
            f"{folder.path} has no learned solver: train one with "
            f"`equilibria distill {folder.path}`"
        )
    try:
        about = storage.read(path, Learner)
        if (version := about["format"]) != FORMAT:
            raise RunError(f"{path} is of format {version}, but this version reads {FORMAT}")
        with torch.device("meta"):  # allocates nothing: the sizes are not yet verified
            learned = Learned.of(about["learned"])
        usual = model.deq.eval_solver or model.deq.solver
        solver = NeuralSolver(**{name: about["solver"][name] for name in OWN}, **usual.limits)
        source, digest = about["distilled_from"], about["weights"]
    except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        if isinstance(error, RunError):
            raise
        raise CheckpointError(f"{path} is damaged ({error}): {_again(folder)}") from None
    if source != checksum(folder.weights):
        raise RunError(
            f"the learned solver in {folder.path} was distilled from other weights than those the "
            f"run has now: {_again(folder)}"
        )
    state = read_weights(weights, _again(folder))
    if digest != checksum(weights):
        raise CheckpointError(f"{weights} and {path} belong to different solvers: {_again(folder)}")
    if what := misfit(state, learned.state_dict(), ABOUT):
        raise CheckpointError(f"{weights} does not fit {path} ({what}): {_again(folder)}")
    learned.load_state_dict(state, assign=True)
    if not all(bool(torch.isfinite(each).all()) for each in state.values()):
        raise CheckpointError(f"{weights} has weights that are not finite: {_again(folder)}")
    model.deq.neural = learned.requires_grad_(False)
    model.deq.eval_solver = solver
    return model


def starts(model: Model) -> bool:
    """Return whether a model's solves in eval mode start from a learned initial guess."""
    if not isinstance(model, EquilibriumModel):
        return False
    layer = model.deq
    learned = isinstance(layer.neural, Learned) and layer.neural.initialiser is not None
    return learned and isinstance(layer.eval_solver, NeuralSolver)


def set_budget(how: Distillation, model: EquilibriumModel) -> Distillation:
    """Return `how` with a budget: by default 3 % of the model's parameters, embeddings excluded.

    Args:
        how: as requested by the user.
        model: of the run.
    """
    if how.budget is not None:
        return how
    return replace(how, budget=max(1, int(SHARE * size_of(model))))


def size_of(model: EquilibriumModel) -> int:
    """Return a model's number of parameters, excluding embeddings and a learned solver."""
    learned = model.deq.neural
    left_out = {id(p) for p in learned.parameters()} if isinstance(learned, nn.Module) else set()
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
        task: its training data are used or, with `other`, its test data.
        batches: maximum number of batches.
        batch_size: rows of each.
        seed: for their order.
        other: whether the data differ from those of the run.
    """
    feed = None if other else task.feed(batch_size, seed)
    if feed is not None:
        stream = (feed.batch(step) for step in range(min(batches, feed.steps)))
    else:
        stream = task.batches("test", batch_size)
    device = next(model.parameters()).device
    found: list[tuple[Any, ...]] = []
    carry = None
    # A text model carries its equilibrium over; for others one evaluation is enough.
    with _record_inputs(model, found, None if task.streams else Picard(max_evals=1)):
        for batch in stream:
            inputs = to_device(batch.inputs, device)
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
    with _record_inputs(model, found, Picard(max_evals=1)):
        for inputs in stream:
            model(inputs.to(where))
    return found


@contextmanager
def _record_inputs(
    model: EquilibriumModel, found: list[tuple[Any, ...]], solver: Solver | None
) -> Iterator[None]:
    """Record the inputs of a model's equilibrium layer, which uses `solver` meanwhile."""

    def keep(module: Any, inputs: Sequence[Any]) -> None:
        found.append(tuple(inputs))

    handle = model.deq.register_forward_pre_hook(keep)
    try:
        with torch.no_grad(), using(model, eval_solver=solver):
            yield
    finally:
        handle.remove()


def _again(folder: Folder) -> str:
    return f"train a new one with `equilibria distill {folder.path} --overwrite`"
