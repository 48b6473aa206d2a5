"""Checkpoints of a trainer: what they hold, and how a run goes on from one.

A run may go on with another number of processes: the state of each is then dealt out anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch.utils import _pytree as pytree

from equilibria.run import recipe as recipes
from equilibria.run.checkpoint import Checkpoint, CheckpointError
from equilibria.run.folder import Folder, RunError, check_data, check_untrained
from equilibria.run.processes import agree, random_state, set_random_state, state_of_seed
from equilibria.run.sharding import Sharding
from equilibria.run.tally import Tally
from equilibria.run.tasks import Part
from equilibria.run.trainer import Trainer
from equilibria.run.trees import copy_tensors, to_device
from equilibria.run.weights import misfit, write_weights

# --- save -----------------------------------------------------------------------------------------


def save(trainer: Trainer, folder: Folder) -> None:
    """Write a checkpoint and, at the end of an epoch, the weights.

    By `checkpoint.async` they are written in the background, as `Background.settle` makes sure.

    Raises:
        OSError: they, or those before in the background, could not be written; the previous
            files are untouched.
        Elsewhere: another process could not write them.
    """
    trainer.background.settle()
    recipe, scaler = trainer.recipe, trainer.accelerator.scaler
    own = {
        "random": random_state(),
        "tally": trainer.tally.state(),
        "carry": to_device(trainer.carry, "cpu"),
        **{hook.name: hook.state() for hook in trainer.hooks},
    }
    parts = {"processes": gather_object([own])}
    if scaler is not None:
        parts["scaler"] = scaler.state_dict()
    about = {
        "recipe": recipes.decisive(recipe),
        "data": trainer.task.checksum,
        "seconds": trainer.seconds,
        "metrics": list(trainer.records),
    }
    if recipe.checkpoint.async_:
        parts = copy_tensors(parts)
    write = _save_shares if isinstance(trainer.layout, Sharding) else _save_whole
    write(trainer, folder, about, parts)


def _ends_epoch(trainer: Trainer) -> bool:
    return trainer.step % trainer.steps_per_epoch == 0


def _save_whole(trainer: Trainer, folder: Folder, about: Any, parts: dict[str, Any]) -> None:
    """Write a checkpoint by the main process, which has everything."""
    with agree(trainer.accelerator):
        if not trainer.accelerator.is_main_process:
            return
        step, ends, how = trainer.step, _ends_epoch(trainer), trainer.recipe.checkpoint
        state, optimizer = trainer.model.state_dict(), trainer.optimizer.state_dict()
        if how.async_:
            state, optimizer = copy_tensors(to_device((state, optimizer), "cpu"))

        def write() -> None:
            every = {"optimiser": optimizer, **parts}
            folder.checkpoints.save(step, about, state, every, keep=how.keep)
            if ends:
                write_weights(folder.weights, state)

        if how.async_:
            trainer.background.submit(write)
        else:
            write()


def _save_shares(trainer: Trainer, folder: Folder, about: Any, parts: dict[str, Any]) -> None:
    """Write a checkpoint by all processes, each its share."""
    from equilibria.run import shares

    step, ends, accelerator = trainer.step, _ends_epoch(trainer), trainer.accelerator
    tensors, parts["optimiser"] = shares.collect(trainer.model, trainer.optimizer)
    whole = trainer.layout.whole_state() if ends else {}
    begun: list[Any] = [None]
    with agree(accelerator):
        if accelerator.is_main_process:
            begun = [folder.checkpoints.begin(step)]
    broadcast_object_list(begun)

    def complete(described: Any, sums: Any) -> None:
        known, keep = {**about, "shares": described}, trainer.recipe.checkpoint.keep
        with trainer.background.place_files():
            folder.checkpoints.complete(begun[0], step, known, parts, sums, keep=keep)
            if ends:
                write_weights(folder.weights, whole)

    background = trainer.background
    with agree(accelerator):  # torch has let it fail on all: this is for the message
        background.write = shares.write(tensors, begun[0], complete, background.group)


# --- restore --------------------------------------------------------------------------------------


def restore(
    trainer: Trainer, folder: Folder, warn: Callable[[str], object] = print
) -> Checkpoint | None:
    """Restore a run from its newest intact checkpoint, or to its start if there is none yet.

    Args:
        trainer: of the run, as it begins.
        folder: of the run.
        warn: called with a sentence about each damaged checkpoint.

    Returns:
        The checkpoint; None if there is none yet.

    Raises:
        RunError: it was saved on other data, or under a recipe with another result; or its
            checkpoints are missing.
        CheckpointError: they are damaged.
    """
    found = folder.checkpoints.newest(
        warn, part=trainer.part, gather=lambda each: gather_object([each])
    )
    if found is None:
        check_untrained(folder)
        return None
    check_data(folder, trainer.task)
    try:
        _check_same(trainer, found)
        mine = _deal(trainer, found)
        _fill(trainer, found)
        if trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.load_state_dict(found.parts["scaler"])
        trainer.step, trainer.seconds = found.step, found.about["seconds"]
        trainer.records = found.about["metrics"]
        trainer.tally = Tally.restore(mine["tally"])
        trainer.carry = to_device(mine["carry"], trainer.accelerator.device)
        for hook in trainer.hooks:
            hook.restore(mine[hook.name])
        set_random_state(mine["random"])
    except RunError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{found.path} does not fit the model and the optimiser of this run, or is of "
            f"another version of equilibria ({reason})"
        ) from None
    return found


def _check_same(trainer: Trainer, found: Checkpoint) -> None:
    """Raise RunError if a checkpoint was saved on other data or by another recipe."""
    lines = recipes.differences(found.about["recipe"], recipes.decisive(trainer.recipe))
    if lines:
        raise RunError(f"{found.path} belongs to a run of another recipe ({'; '.join(lines)})")
    if found.about["data"] != trainer.task.checksum:
        raise RunError(f"{found.path} belongs to a run on other data ({found.about['data']})")


def _fill(trainer: Trainer, found: Checkpoint) -> None:
    """Give the model and the optimiser what a checkpoint has, whole or in shares."""
    model, optimizer = trainer.model, trainer.optimizer
    described, kept = found.about.get("shares"), found.parts["optimiser"]
    if described is None and not isinstance(trainer.layout, Sharding):
        if wrong := misfit(found.model, model.state_dict(), "the recipe"):
            raise ValueError(wrong)
        model.load_state_dict(found.model)
        optimizer.load_state_dict(kept)
        return
    from equilibria.run import shares

    if described is not None:
        named = {chunk["file"] for each in described.values() for chunk in each["chunks"]}
        if strange := named - found.about["parts"].keys():
            raise ValueError(f"{min(strange)} is none of its files")
        source = shares.CheckpointFiles(found.path, described)
    else:
        names = {id(p): name for name, p in model.named_parameters()}
        order = [names[id(p)] for g in optimizer.param_groups for p in g["params"]]
        source, kept = shares.by_name(found.model, kept, order)
    shares.fill(source, kept, model, optimizer)


# --- another number of processes ------------------------------------------------------------------


def _deal(trainer: Trainer, found: Checkpoint) -> Any:
    """Return what a checkpoint has for this process."""
    processes, count = found.parts["processes"], trainer.part.count
    if len(processes) == count:
        return processes[trainer.part.index]
    recipe = trainer.recipe
    mine, notes = deal(processes, trainer.part, recipe.rows, seed=recipe.seed, step=found.step)
    before = f"{len(processes)} process{'es' * (len(processes) > 1)}"
    again = ": " + "; ".join(notes) if notes else ""
    trainer.notes = [f"Saved by {before}, continued by {count}{again}"]
    return mine


def deal(
    states: Sequence[Mapping[str, Any]], part: Part, rows: int, *, seed: int, step: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the state of one process, computed from those of a different number of processes.

    State of samples moves with them. Running sums go to the first process. The draws of a step are
    keyed to its samples and need no state; the global random generators, which other code may have
    used, are reseeded, differently for each process and step.

    Args:
        states: of all processes that saved the run, in order.
        part: the share of this process.
        rows: rows per step, over all processes.
        seed: of the run.
        step: number of steps taken so far.

    Returns:
        The state, and a note on everything that differs from an uninterrupted run.
    """
    first, notes = states[0], []
    found = dict(first)
    found["random"] = state_of_seed(seed + part.index)
    if any(s["random"] != state_of_seed(seed + index) for index, s in enumerate(states)):
        again = random.Random(f"resumed {seed} {step} {part.index}").getrandbits(32)
        found["random"] = state_of_seed(again)
        notes.append("the global random generators, from which draws were taken, are reseeded")
    empty = Tally().state()
    found["tally"] = empty if part.index else Tally.total(s["tally"] for s in states).state()
    if first.get("stabiliser") is not None:
        found["stabiliser"] = _stabilizer_share([s["stabiliser"] for s in states], part.index)
    found["carry"] = _carry_share([s["carry"] for s in states], part, rows)
    if first.get("neural") is not None:
        found["neural"] = states[part.index % len(states)]["neural"]
        if part.count > len(states):
            notes.append("each additional process uses the learned solver of an earlier one")
        else:
            notes.append("the learned solvers of processes that no longer exist are lost")
    return found, notes


def _stabilizer_share(states: Sequence[Mapping[str, Any]], index: int) -> dict[str, Any]:
    """Return the state with all sums on the first process."""
    found = dict(states[0])
    names = dict.fromkeys(name for s in states for name in s["counts"])
    total = {name: sum(s["counts"].get(name, 0.0) for s in states) for name in names}
    found["counts"] = {} if index else total
    for name in ("evals", "samples"):
        found[name] = 0 * states[0][name] if index else sum(s[name] for s in states)
    return found


def _carry_share(carries: Sequence[Any], part: Part, rows: int) -> Any:
    """Return this process's rows of the carry; rows are ordered by process, then by micro-batch."""
    if any(carry is None for carry in carries):
        return None
    pieces = [piece for carry in carries for piece in carry]
    if any(piece is None for piece in pieces):
        return [None] * len(carries[0])
    leaves = [pytree.tree_flatten(piece) for piece in pieces]
    spec = leaves[0][1]
    whole = [torch.cat(each) for each in zip(*(flat for flat, _ in leaves), strict=True)]
    count = len(carries[0])
    return [
        pytree.tree_unflatten(
            [each[part.divide(number, count).of(rows)].clone() for each in whole], spec
        )
        for number in range(count)
    ]
