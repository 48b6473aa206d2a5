"""The trained weights of a run, as safetensors with a checksum."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from equilibria import files
from equilibria.run.checkpoint import CheckpointError, plain

CHECKSUM = "sha256"
"""Key of the file's metadata that has the checksum of its tensors."""


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the parameters and buffers of `model`, whole or not at all."""
    write_weights(path, model.state_dict())


def write_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write parameters and buffers by name, whole or not at all."""
    state = plain(state)
    content = save(state, {"format": "pt", CHECKSUM: digest(state)})
    files.write_bytes(path, _with_sorted_metadata(content))


def _with_sorted_metadata(content: bytes) -> bytes:
    """Return a safetensors file, which has its metadata in any order, with them in one order."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def load_weights(path: Path, model: nn.Module) -> None:
    """Put the weights that `save_weights` wrote into `model`.

    Raises:
        CheckpointError: the file is missing, damaged or of another model.
    """
    model.load_state_dict(read_weights_like(path, model.state_dict()))


def read_weights_like(
    path: Path, like: Mapping[str, Tensor], source: str = "the recipe"
) -> dict[str, Tensor]:
    """Return the tensors that `save_weights` wrote, which are like others, but for their values.

    Args:
        path: of the file.
        like: tensors of these names, shapes and dtypes.
        source: what these were taken from, for messages.

    Raises:
        CheckpointError: the file is missing, damaged or of another model.
    """
    state = read_weights(path)
    if wrong := misfit(state, like, source):
        raise CheckpointError(f"{path} holds the weights of another model: {wrong}")
    return state


def misfit(state: Mapping[str, Tensor], like: Mapping[str, Tensor], source: str) -> str:
    """Say which of some tensors have no counterpart of their dtype and shape; "" if all have.

    Args:
        state: by name, from a file.
        like: by name.
        source: what these were taken from.
    """
    there, here = ({key: _kind(value) for key, value in s.items()} for s in (state, like))
    wrong = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if not wrong:
        return ""
    key, more = wrong[0], f" (and {len(wrong) - 1} others)" if len(wrong) > 1 else ""
    return (
        f"{key} is {there.get(key, 'not there')} in the file, {here.get(key, 'unknown')} by "
        f"{source}{more}"
    )


def _kind(tensor: Tensor) -> str:
    """The dtype and the shape of a tensor, in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


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
