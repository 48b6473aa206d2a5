"""Weights of another run to begin with: which are taken, and which are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.train.checkpoint import CheckpointError
from equilibria.train.folder import Folder
from equilibria.train.weights import checksum, read_weights

__all__ = ["Transfer", "transfer"]

_LISTED = 4
"""Names that a line of the report gives."""


@dataclass(frozen=True)
class Transfer:
    """What a run began with, by the names of tensors.

    Attributes:
        source: file of the weights.
        checksum: of its tensors.
        taken: tensors of the model that have the values of the source.
        new: tensors that the source does not have.
        left: tensors of the source that the model does not have.
        unlike: tensors that both have, of different shapes, which keep their own values.
    """

    source: Path
    checksum: str | None
    taken: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]
    unlike: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """Return it as a run records it."""
        lists = {name: list(getattr(self, name)) for name in ("taken", "new", "left", "unlike")}
        return {"source": str(self.source), "checksum": self.checksum, **lists}

    def __str__(self) -> str:
        lines = [f"Begins with {len(self.taken)} tensors of {self.source}"]
        for names, what in (
            (self.new, "new, since it does not have them"),
            (self.left, "left, since this model does not have them"),
            (self.unlike, "new, since their shapes differ"),
        ):
            if names:
                lines.append(f"  {len(names)} {what}: {_listed(names)}")
        return "\n".join(lines)


@torch.no_grad()
def transfer(source: str | Path, model: nn.Module) -> Transfer:
    """Put the weights of a run into a model, as far as names and shapes agree.

    A cell's tensors have the same names in an equilibrium network, `deq.cell.`, and unrolled,
    `cell.`: both are taken for each other.

    Args:
        source: a run folder, or a safetensors file.
        model: that begins with them.

    Raises:
        CheckpointError: there are no such weights, they are damaged, or none of the cell's, or of a
            network without one none at all, fits.
    """
    path = Path(source)
    path = Folder(path).weights if path.is_dir() else path
    given = {_plain(name): value for name, value in read_weights(path).items()}
    own = model.state_dict()
    taken: list[str] = []
    new: list[str] = []
    unlike: list[str] = []
    for name, value in own.items():
        other = given.get(_plain(name))
        if other is None:
            new.append(name)
        elif other.shape != value.shape:
            unlike.append(name)
        else:
            value.copy_(other)
            taken.append(name)
    known = {_plain(name) for name in own}
    left = tuple(name for name in given if name not in known)
    cells = [name for name in own if _plain(name).startswith("cell.")]
    if not set(taken) & set(cells or own):
        what = "of the cell's tensors" if cells else "of the model's tensors"
        example = _difference(own, given, (unlike or new)[0])
        raise CheckpointError(
            f"init_from: none {what} is in {path} with the same name and shape ({example}): take a "
            "run of the same cell, or set the model's channels to those of that run"
        )
    return Transfer(path, checksum(path), tuple(taken), tuple(new), left, tuple(unlike))


def _plain(name: str) -> str:
    """The name of a tensor, without what tells a solved cell from an unrolled one."""
    return name.removeprefix("deq.")


def _difference(own: dict[str, Tensor], given: dict[str, Tensor], name: str) -> str:
    other = given.get(_plain(name))
    there = "not there" if other is None else f"{tuple(other.shape)} there"
    return f"{name} is {tuple(own[name].shape)} here, {there}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    text = ", ".join(names[:_LISTED])
    return f"{text} and {more} more" if more > 0 else text
