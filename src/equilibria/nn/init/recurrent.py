"""Which weights of a model are applied to the state, again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from equilibria.nn.deq import DEQ
from equilibria.nn.frozen import module_of
from equilibria.nn.init.fill import Maps

__all__ = ["RecurrentWeight", "recurrent_weights"]


@dataclass(frozen=True, kw_only=True)
class RecurrentWeight:
    """A weight that f applies to its state.

    Attributes:
        path: of the weight in the model, such as `deq.cell.linear.weight`.
        layer: the module that has it.
        name: of the weight in that module.
        maps: the linear maps that it is made of.
    """

    path: str
    layer: nn.Module
    name: str = "weight"
    maps: Maps = field(default_factory=Maps)

    def value(self) -> Tensor:
        """Return the weight as f uses it: normalised, where it is; detached."""
        return getattr(self.layer, self.name).detach()

    @torch.no_grad()
    def set(self, value: Tensor) -> None:
        """Put `value` in the place of the weight, through its parametrisation where it has one."""
        if torch.nn.utils.parametrize.is_parametrized(self.layer, self.name):
            setattr(self.layer, self.name, value)
        else:
            getattr(self.layer, self.name).copy_(value)


def recurrent_weights(model: nn.Module) -> list[RecurrentWeight]:
    """Find the weights that the cell of an equilibrium model applies to its state.

    They are those of all linear and convolutional layers, and the input projections of all
    `nn.MultiheadAttention`, in the cells of the model's `DEQ` layers, less those that a module
    declares not to be (see `Maps`). Of a convolution in groups each group is a map.

    Args:
        model: a model with `DEQ` layers, or a cell itself.

    Returns:
        One for each, in the order of the modules.

    Raises:
        ValueError: there is none; the message says where it was looked.
    """
    layers = [(path, m) for path, m in model.named_modules() if isinstance(m, DEQ)]
    cells: list[tuple[str, nn.Module]] = []
    for path, layer in layers:
        if (owner := module_of(layer.cell)) is not None:
            cells.append((f"{path}.cell" if path else "cell", owner))
    if not layers:
        cells = [("", model)]
    found: dict[int, RecurrentWeight] = {}
    for prefix, cell in cells:
        for weight in _walk(cell, prefix, {}):
            # A cell that two layers share is one.
            found.setdefault(hash((id(weight.layer), weight.name)), weight)
    if not found:
        where = "the cells of its DEQ layers" if layers else "it (it has no DEQ layer)"
        raise ValueError(
            f"{type(model).__name__} has no recurrent weight: there is no linear or convolutional "
            f"layer in {where} that is applied to the state as it is. Weights that a plain "
            "function closes over are not known: make the cell a module"
        )
    return list(found.values())


def _walk(
    module: nn.Module, path: str, declared: dict[str, Maps | None]
) -> Iterator[RecurrentWeight]:
    """The weights below a module, by what the modules above have declared of paths below it."""
    if "" in declared and declared[""] is None:
        return
    if isinstance(module, nn.Linear | _ConvNd):
        maps = declared.get("") or _grouped(module)
        yield RecurrentWeight(path=_join(path, "weight"), layer=module, maps=maps)
    if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
        yield RecurrentWeight(
            path=_join(path, "in_proj_weight"),
            layer=module,
            name="in_proj_weight",
            maps=Maps(rows=(module.embed_dim,) * 3),
        )
    own = {**declared, **getattr(module, "maps", {})}
    for name, child in module.named_children():
        if name == "parametrizations":
            continue
        below = {
            key.removeprefix(name).removeprefix("."): maps
            for key, maps in own.items()
            if key == name or key.startswith(f"{name}.")
        }
        yield from _walk(child, _join(path, name), below)


def _grouped(layer: nn.Linear | _ConvNd) -> Maps:
    if isinstance(layer, _ConvNd) and layer.groups > 1:
        if isinstance(layer, _ConvTransposeNd):
            return Maps(rows=(layer.in_channels // layer.groups,) * layer.groups)
        return Maps(rows=(layer.out_channels // layer.groups,) * layer.groups)
    return Maps()


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
