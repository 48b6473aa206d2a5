"""Sharded checkpoints: written by all processes, read by any number of them.

`torch.distributed.checkpoint` plans the layout. Its own files are pickled, which is not allowed in
a run folder: here each process writes one safetensors file, and a JSON index lists their contents.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from equilibria import files

dcp: Any = checkpoint

Described = Mapping[str, Mapping[str, Any]]
"""For each tensor, by name, its `dtype`, `size` and `chunks`: their `offsets` and `sizes`, and the
`file` and the `key` in it under which they are stored."""

MODEL, OPTIMIZER = "model.", "optimiser."
"""Prefixes of the names of tensors."""


Complete = Callable[[Described, Mapping[str, Any]], None]
"""Completes a checkpoint once its files are written."""


class Writer(StorageWriter):
    """Writes the files of one checkpoint into a folder, and then completes it.

    Args:
        path: the folder, which exists.
        complete: called on the first process once all files are written, with their contents
            (`Described`) and with the size and SHA-256 of each file, by name.
    """

    def __init__(self, path: Path, complete: Complete) -> None:
        self.path, self.complete = path, complete

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: no state is kept between checkpoints."""

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Do nothing: the first process coordinates."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan of this process unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Assign a separate file to each process."""
        count = len(plans)
        names = (f"share-{index:05d}-of-{count:05d}.safetensors" for index in range(count))
        return [replace(plan, storage_data=name) for plan, name in zip(plans, names, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this process's file, and flush it to disk."""
        name, tensors, places = plan.storage_data, {}, []
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                raise TypeError(f"{item.index.fqn} is not a tensor")
            key = f"{item.index.fqn}@{','.join(map(str, item.index.offset or ()))}"
            value: Any = planner.resolve_data(item)
            tensors[key] = value.detach().cpu().contiguous().clone()
            places.append((item.index, key))
        content = save(tensors)
        files.write_bytes(self.path / name, content)
        about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        done: Future[list[WriteResult]] = Future()
        done.set_result(
            [
                WriteResult(index, tensors[key].nbytes, {"file": name, "key": key, "about": about})
                for index, key in places
            ]
        )
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the checkpoint, on the first process."""
        places = {each.index: each.storage_data for part in results for each in part}
        sums = {place["file"]: place["about"] for place in places.values()}
        self.complete(dict(_describe(metadata, places)), sums)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Accept no checkpoint id: a writer knows its folder."""
        return checkpoint_id is None


def _describe(metadata: Metadata, places: Mapping[MetadataIndex, Any]) -> Iterable[Any]:
    for name, about in metadata.state_dict_metadata.items():
        assert isinstance(about, TensorStorageMetadata)
        chunks = []
        for chunk in about.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            chunks.append(
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": place["file"],
                    "key": place["key"],
                }
            )
        dtype = str(about.properties.dtype).removeprefix("torch.")
        yield name, {"dtype": dtype, "size": list(about.size), "chunks": chunks}


def write(
    state: Mapping[str, Tensor],
    path: Path,
    complete: Complete,
    background: distributed.ProcessGroup | None = None,
) -> Any:
    """Write a checkpoint; called by all processes together.

    Args:
        state: tensors by name, sharded ones as `DTensor`s.
        path: an existing folder, which is removed if the checkpoint cannot be written.
        complete: see `Writer`.
        background: a Gloo process group for communication while training continues; None to wait
            for the disk.

    Returns:
        A handle whose `result()` waits for the background write; None without one.

    Raises:
        OSError: this process could not write.
        RuntimeError: another process could not write; the message says which.
    """
    writer = Writer(path, complete)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an unstable interface
        if background is not None:
            found: Any = dcp.async_save(
                dict(state), storage_writer=writer, process_group=background
            )
            return _Waiting(getattr(found, "upload_completion", found), path)
        with _failures(path):
            dcp.save(dict(state), storage_writer=writer)
    return None


class _Waiting:
    """A checkpoint that is being written."""

    def __init__(self, future: Any, path: Path) -> None:
        self.future, self.path = future, path

    def result(self, timeout: float | None = None) -> None:
        """Wait for it, so many seconds at most; raise as `write` does."""
        with _failures(self.path):
            self.future.result(timeout)

    def done(self) -> bool:
        """Return whether the write has ended, if by an error."""
        return self.future.done()


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Raise the first of the errors that torch collects from all processes."""
    try:
        yield
    except CheckpointException as error:
        if distributed.get_rank() == 0:
            shutil.rmtree(path, ignore_errors=True)
        rank = min(error.failures)
        first = error.failures[rank][0]
        if rank == distributed.get_rank():
            raise first from None
        raise RuntimeError(f"process {rank}: {first}") from None


# --- reading --------------------------------------------------------------------------------------


class CheckpointFiles:
    """The tensors in the files of a checkpoint.

    Args:
        path: its folder.
        described: the contents of the files.
    """

    def __init__(self, path: Path, described: Described) -> None:
        self.path, self.described = path, described

    def read(self, place: Mapping[str, Any], part: tuple[slice, ...]) -> Tensor:
        """Return a part of a chunk."""
        with safe_open(self.path / place["file"], framework="pt") as file:
            return file.get_slice(place["key"])[part] if part else file.get_tensor(place["key"])


class Tensors:
    """Unsharded tensors in memory, with the interface of `CheckpointFiles`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.described: Described = {
            name: {
                "dtype": str(each.dtype).removeprefix("torch."),
                "size": list(each.shape),
                "chunks": [
                    {"offsets": [0] * each.ndim, "sizes": list(each.shape), "file": "", "key": name}
                ],
            }
            for name, each in tensors.items()
        }

    def read(self, place: Mapping[str, Any], part: tuple[slice, ...]) -> Tensor:
        """Return a part of a tensor."""
        return self.tensors[place["key"]][part]


class _Reader(StorageReader):
    """Reads what a process needs, without coordination."""

    def __init__(self, source: CheckpointFiles | Tensors) -> None:
        self.source = source
        self.places: dict[MetadataIndex, Any] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        known = {}
        for name, about in self.source.described.items():
            chunks = []
            for each in about["chunks"]:
                offsets = torch.Size(each["offsets"])
                chunks.append(ChunkStorageMetadata(offsets, torch.Size(each["sizes"])))
                self.places[MetadataIndex(name, offsets)] = each
            properties = TensorProperties(dtype=getattr(torch, about["dtype"]))
            known[name] = TensorStorageMetadata(properties, torch.Size(about["size"]), chunks)
        return Metadata(state_dict_metadata=known)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            ranges = zip(item.storage_offsets, item.lengths, strict=True)
            part = tuple(slice(start, start + length) for start, length in ranges)
            found = self.source.read(self.places[item.storage_index], part)
            target = planner.resolve_tensor(item).detach()
            target.copy_(found.reshape(target.shape))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return checkpoint_id is None


# --- a model and its optimiser --------------------------------------------------------------------


def collect(model: nn.Module, optimizer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return all tensors of a model and its optimiser by name, and the optimiser's other state."""
    names = {id(p): name for name, p in model.named_parameters()}
    states = {names[id(p)]: state for p, state in optimizer.state.items()}
    groups = [
        {**group, "params": [names[id(p)] for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    return _flatten(model.state_dict(), states), _others(states, groups)


def by_name(model: Mapping[str, Tensor], state: Mapping[str, Any], names: list[str]) -> Any:
    """Return what `collect` would, from the state dictionaries of a model and its optimiser.

    Args:
        model: parameters and buffers.
        state: of the optimiser, in which parameters are numbered.
        names: of the parameters, in the same order.
    """
    states = {names[number]: each for number, each in state["state"].items()}
    groups = [
        {**group, "params": [names[number] for number in group["params"]]}
        for group in state["param_groups"]
    ]
    return Tensors(_flatten(model, states)), _others(states, groups)


def _flatten(
    model: Mapping[str, Tensor], states: Mapping[str, Mapping[str, Any]]
) -> dict[str, Tensor]:
    """Return the tensors of a model and of its optimiser's states, by their names in the files."""
    return {f"{MODEL}{name}": each for name, each in model.items()} | {
        f"{OPTIMIZER}{name}.{key}": value
        for name, state in states.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def _others(states: Mapping[str, Mapping[str, Any]], groups: list[Any]) -> dict[str, Any]:
    """Return the state of an optimiser less its tensors."""
    others = {
        name: {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        for name, state in states.items()
    }
    return {"param_groups": groups, "others": {name: each for name, each in others.items() if each}}


def fill(
    source: CheckpointFiles | Tensors, about: Mapping[str, Any], model: nn.Module, optimizer: Any
) -> None:
    """Load a checkpoint into a model and its optimiser, which may be sharded.

    Args:
        source: the tensors.
        about: the rest of what `collect` returned.
        model: its parameters may be sharded across any number of processes, or not at all.
        optimizer: of this model.

    Raises:
        ValueError, RuntimeError: the checkpoint is of a different model.
    """
    target = {f"{MODEL}{name}": each for name, each in model.state_dict().items()}
    here = {name for name in source.described if name.startswith(MODEL)}
    if unknown := here ^ target.keys():
        raise ValueError(
            f"{min(unknown).removeprefix(MODEL)} is not in both the checkpoint and the model"
        )
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, Any]] = {}
    for name, each in source.described.items():
        if name.startswith(OPTIMIZER):
            owner, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
            p, dtype = parameters[owner].detach(), getattr(torch, each["dtype"])
            like = list(p.shape) == each["size"]
            value = torch.zeros_like(p) if like else torch.zeros(each["size"], dtype=dtype)
            states.setdefault(owner, {})[key] = target[name] = value
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that each process reads on its own
        try:
            dcp.load(target, storage_reader=_Reader(source), no_dist=True)
        except CheckpointException as error:
            raise ValueError(str(next(iter(error.failures.values()))[0])) from None
    for owner, each in about["others"].items():
        states.setdefault(owner, {}).update(each)
    order = [name for group in about["param_groups"] for name in group["params"]]
    names = {id(p): name for name, p in parameters.items()}
    if order != [names[id(p)] for group in optimizer.param_groups for p in group["params"]]:
        raise ValueError("the optimiser has different parameters, or a different order of them")
    number = {name: index for index, name in enumerate(order)}
    groups = [
        {**group, "params": [number[name] for name in group["params"]]}
        for group in about["param_groups"]
    ]
    known = {number[owner]: each for owner, each in states.items()}
    optimizer.load_state_dict({"state": known, "param_groups": groups})
