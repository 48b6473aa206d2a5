"""Weights of another run to begin with: which are taken, and which are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.run.checkpoint import CheckpointError
from equilibria.run.folder import Folder
from equilibria.run.weights import checksum, read_weights
from equilibria.words import list_some, percent, plural

_LISTED = 4
"""Names that a line of the report gives."""

_SHARE = 0.05
"""Share of the cell's weights below which a run is of another cell: gains of normalisation, and
lengths of kernels without their directions, agree in shape by chance."""


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
        share: of the model's weights that were taken, by number of values.
    """

    source: Path
    checksum: str | None
    taken: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]
    unlike: tuple[str, ...]
    share: float

    def json(self) -> dict[str, Any]:
        """Return it as a run records it."""
        lists = {name: list(getattr(self, name)) for name in ("taken", "new", "left", "unlike")}
        return {"source": str(self.source), "checksum": self.checksum, **lists}

    def __str__(self) -> str:
        count = plural(len(self.taken), "tensor")
        lines = [f"Begins with {count} of {self.source} ({percent(self.share)} of the weights)"]
        for names, what in (
            (self.new, "new, missing from that run"),
            (self.unlike, "new, of another shape in that run"),
            (self.left, "left out, not in this model"),
        ):
            if names:
                lines.append(f"  {len(names)} {what}: {list_some(names, _LISTED)}")
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
        CheckpointError: there are no such weights, they are damaged, or less than 5 % of the
            cell's, or of a network without one of all weights, fits.
    """
    path = Path(source)
    if not path.exists():
        raise CheckpointError(f"init_from: there is no run folder or safetensors file {path}")
    if path.is_dir():
        run = Folder(path)
        if not (run.recipe.is_file() or run.weights.is_file()):
            raise CheckpointError(
                f"init_from: {path} is not a run folder: it has no {run.recipe.name}"
            )
        path = run.weights
    given = {_plain(name): value for name, value in read_weights(path).items()}
    own = model.state_dict()
    taken: list[str] = []
    new: list[str] = []
    unlike: list[str] = []
    for name, value in own.items():
        other = given.get(_plain(name))
        if other is None:
            new.append(name)
        elif other.shape != value.shape or not _may_become(other.dtype, value.dtype):
            unlike.append(name)
        else:
            taken.append(name)
    known = {_plain(name) for name in own}
    left = tuple(name for name in given if name not in known)
    cells = [name for name in own if _plain(name).startswith("cell.")]
    fits = _share(own, taken, cells or list(own))
    if fits < _SHARE:
        few = "none" if not fits else f"only {percent(fits)}"
        differing = [name for name in (*unlike, *new) if name in (cells or own)]
        example = _difference(own, given, differing[0])
        raise CheckpointError(
            f"init_from: {few} of the {'cell' if cells else 'model'}'s weights are in {path} with "
            f"the same name and shape ({example}): take a run of the same cell, or set the model's "
            "channels to those of that run"
        )
    for name in taken:  # nothing of a run that is refused
        own[name].copy_(given[_plain(name)])
    share = _share(own, taken, list(own))
    return Transfer(path, checksum(path), tuple(taken), tuple(new), left, tuple(unlike), share)


def _may_become(given: torch.dtype, own: torch.dtype) -> bool:
    """Whether numbers stay what they are: all real, in any precision, or of the same type."""
    return given == own or (given.is_floating_point and own.is_floating_point)


def _share(own: dict[str, Tensor], taken: Sequence[str], names: Sequence[str]) -> float:
    """The share of the values of some tensors that are in those taken."""
    values = {name: own[name].numel() for name in names}
    return sum(values[name] for name in {*taken} & {*names}) / max(1, sum(values.values()))


def _plain(name: str) -> str:
    """The name of a tensor, without what tells a solved cell from an unrolled one."""
    return name.removeprefix("deq.")


def _difference(own: dict[str, Tensor], given: dict[str, Tensor], name: str) -> str:
    other = given.get(_plain(name))
    there = "not there" if other is None else f"{tuple(other.shape)} there"
    return f"{name} is {tuple(own[name].shape)} here, {there}"
