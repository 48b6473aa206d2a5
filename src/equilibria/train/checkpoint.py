"""Everything that a run needs to continue as if it had never stopped, in one file."""

from __future__ import annotations

import io
import pickle
import random
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.train import files

VERSION = 3
CUDA = torch.cuda.is_available()


class CheckpointError(RuntimeError):
    """A file of a run that cannot be read; the message names it and what to do."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: the file.
        content: tensors, numbers, strings and containers of these, nothing else.

    Raises:
        OSError: it could not be written; the last checkpoint is untouched.
    """
    buffer = io.BytesIO()  # torch reports a full disk as something else when it writes by itself
    torch.save({"version": VERSION, **content}, buffer)
    files.write_bytes(path, buffer.getvalue())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote; nothing in it is executed.

    Raises:
        CheckpointError: the file is missing, damaged or of another version.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: there is nothing to resume from") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:80] or "it is empty"
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({reason})") from None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise CheckpointError(f"{path} is not a checkpoint of this version of equilibria")
    return content


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the parameters and buffers of `model` as safetensors, whole or not at all."""
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    files.write_bytes(path, save(state))


def load_weights(path: Path, model: nn.Module) -> None:
    """Put the weights that `save_weights` wrote into `model`.

    Raises:
        CheckpointError: the file is missing, damaged or of another model.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the run has not saved any weights yet")
    try:
        state = load_file(path)
    except Exception as error:  # safetensors raises its own class for a damaged file
        raise CheckpointError(f"{path} is damaged or not a safetensors file ({error})") from None
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} holds the weights of another model: {reason}") from None


def on_cpu(tree: Any) -> Any:
    """Return a tree with its tensors on the CPU."""
    return pytree.tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, tree)


def copied(tree: Any) -> Any:
    """Return a tree with its tensors detached and copied into contiguous memory.

    Tensors read from a checkpoint are contiguous; arithmetic on a tensor with another layout, such
    as a view of a larger one, may differ in the last bit.
    """
    plain = torch.contiguous_format
    return pytree.tree_map(
        lambda x: x.detach().clone(memory_format=plain) if isinstance(x, Tensor) else x, tree
    )


def seed_all(seed: int) -> None:
    """Seed all global random generators."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Return the state of all global random generators of this process, in plain numbers."""
    _, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state().tolist(),
        "cuda": [s.tolist() for s in torch.cuda.get_rng_state_all()] if CUDA else [],
        "numpy": [numpy.asarray(keys).tolist(), position, has_gauss, gauss],
        "python": [version, list(internal), gauss_next],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore all global random generators of this process to a state from `random_state`."""
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if state["cuda"] and CUDA:
        states = [torch.tensor(each, dtype=torch.uint8) for each in state["cuda"]]
        torch.cuda.set_rng_state_all(states)
    keys, position, has_gauss, gauss = state["numpy"]
    numpy.random.set_state(("MT19937", keys, position, has_gauss, gauss))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
