"""The trained weights of a run, as safetensors with a checksum."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from equilibria import files
from equilibria.train.checkpoint import CheckpointError, plain

CHECKSUM = "sha256"
"""Key of the file's metadata that has the checksum of its tensors."""


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the parameters and buffers of `model`, whole or not at all."""
    write_weights(path, model.state_dict())


def write_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write parameters and buffers by name, whole or not at all."""
    state = plain(state)
    files.write_bytes(path, save(state, {"format": "pt", CHECKSUM: digest(state)}))


def load_weights(path: Path, model: nn.Module) -> None:
    """Put the weights that `save_weights` wrote into `model`.

    Raises:
        CheckpointError: the file is missing, damaged or of another model.
    """
    model.load_state_dict(fitting_weights(path, model.state_dict()))


def fitting_weights(
    path: Path, like: Mapping[str, Tensor], source: str = "the recipe"
) -> dict[str, Tensor]:
    """Return the tensors that `save_weights` wrote, which have the names and shapes of others.

    Args:
        path: of the file.
        like: tensors of these names and shapes.
        source: what these were taken from, for messages.

    Raises:
        CheckpointError: the file is missing, damaged or of another model.
    """
    state = read_weights(path)
    shapes = ({key: tuple(value.shape) for key, value in s.items()} for s in (state, like))
    there, here = shapes
    wrong = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if wrong:
        key, more = wrong[0], f" (and {len(wrong) - 1} others)" if len(wrong) > 1 else ""
        raise CheckpointError(
            f"{path} holds the weights of another model: {key} is {there.get(key, 'not there')} in "
            f"the file, {here.get(key, 'unknown')} by {source}{more}"
        )
    return state


def read_weights(path: Path, remedy: str | None = None) -> dict[str, Tensor]:
    """Return the tensors that `save_weights` wrote, by name.

    Args:
        path: of the file.
        remedy: what to do where it is missing or damaged; None: what restores the weights of a run.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    again = _again(path) if remedy is None else f": {remedy}"
    if not path.is_file():
        if remedy is None:
            again = _again(path, ", where the run has saved any weights")
        raise CheckpointError(f"{path} is missing{again}")
    try:
        with safe_open(path, framework="pt") as file:
            state: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            known = (file.metadata() or {}).get(CHECKSUM)
    except Exception as error:  # safetensors raises its own class for a damaged file
        raise CheckpointError(
            f"{path} is damaged or not a safetensors file ({error}){again}"
        ) from None
    if known not in (None, digest(state)):  # older versions wrote none
        raise CheckpointError(
            f"{path} is damaged: its tensors do not have the checksum that was written with them"
            f"{again}"
        )
    return state


def checksum(path: Path) -> str | None:
    """Return the checksum that was written with weights; None for none, or a damaged file."""
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get(CHECKSUM)
    except Exception:  # safetensors raises its own class
        return None


def _again(path: Path, where: str = "") -> str:
    """What restores the weights of a run; nothing for a file that is not in a run folder."""
    if not (path.parent / "recipe.yaml").is_file():
        return ""
    return f": `equilibria train {shlex.quote(str(path.parent))} --resume` restores it{where}"


def digest(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and values of tensors."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
