"""A weight that is applied to the state: what it is, how much it gives, and how it is set."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import (
    _ConvNd,  # pyright: ignore[reportPrivateUsage]
    _ConvTransposeNd,  # pyright: ignore[reportPrivateUsage]
)
from torch.nn.modules.rnn import RNNCellBase
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm  # pyright: ignore[reportPrivateUsage]

from equilibria.nn.deq import DEQ
from equilibria.nn.frozen import module_of, walk_modules
from equilibria.nn.init.maps import Maps
from equilibria.nn.using import in_eval_mode


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

    @torch.no_grad()
    def value(self) -> Tensor:
        """Return the weight as f uses it in eval mode: normalised, where it is; detached."""
        if not parametrize.is_parametrized(self.layer, self.name):
            return getattr(self.layer, self.name).detach()
        # In training, dropout would draw a mask, and torch's spectral norm move its vectors.
        with in_eval_mode(_steps(self.layer, self.name)):
            return getattr(self.layer, self.name).detach()

    @torch.no_grad()
    def set(self, value: Tensor) -> None:
        """Put `value` in the place of the weight, through its parametrisation where it has one.

        Raises:
            ValueError: it is computed, and not by a parametrisation that can be inverted, or by one
                whose state goes with the weight.
        """
        if not parametrize.is_parametrized(self.layer, self.name):
            stored = _collect_tensors(self.layer).get(self.name)
            if stored is None:
                raise ValueError(
                    f"{self.path} is computed from other tensors, as the hooks of torch.nn.utils "
                    "do, and what is written into it would be lost: use weight_norm or "
                    "spectral_norm of equilibria.nn"
                )
            stored.copy_(value)
            return
        if any(isinstance(step, _SpectralNorm) for step in _steps(self.layer, self.name).modules()):
            raise ValueError(
                f"{self.path} is under torch's spectral_norm, which divides it by an estimate that "
                "is of the weight before until it has been used for a while: use spectral_norm of "
                "equilibria.nn"
            )
        try:
            # Torch makes the tensor that it is given its own.
            setattr(self.layer, self.name, value.clone())
        except RuntimeError as error:
            raise ValueError(
                f"{self.path} cannot be set, since its parametrisation cannot be inverted: {error}"
            ) from error

    def gain(self) -> float:
        """Return the root mean square of W x for independent entries x of mean square 1.

            gain = sqrt(tr(W W^T) / outputs),

        over the outputs of all maps that the weight is made of, as f uses it; NaN of a weight
        without values. Of a square member of an ensemble it is sqrt(V).
        """
        return joint_gain([self])

    def tensors(self) -> list[Tensor]:
        """Return what it is stored in: itself, or what a parametrisation computes it from."""
        if not parametrize.is_parametrized(self.layer, self.name):
            return [getattr(self.layer, self.name)]
        steps = _steps(self.layer, self.name)
        return [*steps.parameters(), *steps.buffers()]


def joint_gain(weights: Sequence[RecurrentWeight]) -> float:
    """Return the gain of several weights together, the mean being over the outputs of all."""
    tiles = [tile for weight in weights for tile in weight.maps.tiles(weight.value())]
    if any(tile.is_meta for tile in tiles):
        return math.nan
    total = sum(float(tile.double().square().sum()) for tile in tiles)
    return math.sqrt(total / sum(len(tile) for tile in tiles))


def set_weights(values: Sequence[tuple[RecurrentWeight, Tensor]]) -> None:
    """Set all of some weights, or none.

    Raises:
        ValueError: one cannot be set.
    """
    tensors = [tensor for weight, _ in values for tensor in weight.tensors()]
    # Torch lets what was made in inference mode be written there alone.
    with torch.inference_mode(any(t.is_inference() for t in tensors)), torch.no_grad():
        before = [(tensor, tensor.detach().clone()) for tensor in tensors]
        try:
            for weight, value in values:
                weight.set(value)
                if not value.is_meta and value.isfinite().all() > weight.value().isfinite().all():
                    raise ValueError(
                        f"{weight.path} is normalised, and an output whose weights are all zero "
                        "has no direction: take a scale above 0"
                    )
        except Exception:
            for tensor, old in before:
                tensor.copy_(old)
            raise


def _steps(layer: nn.Module, name: str) -> nn.Module:
    """The parametrisation of a tensor."""
    steps: Any = layer.parametrizations
    return steps[name]


# --- recurrent ------------------------------------------------------------------------------------

# Which weights of a model are applied to the state, again and again.


Declared = Mapping[str, Maps | None]


def recurrent_weights(
    model: nn.Module, layers: Sequence[str] | None = None
) -> list[RecurrentWeight]:
    """Find the weights that the cell of an equilibrium model applies to its state.

    They are those of all linear and convolutional layers, the input projections of all
    `nn.MultiheadAttention` and the weights `weight_hh` of all recurrent cells such as `nn.GRUCell`
    (but not `weight_ih`, for these take their state in the first place), in the cells of the
    model's `DEQ` layers. Of a convolution in groups each group is a map, of a recurrent cell each
    gate. A weight that two layers share is one.

    What a cell's weights are applied to cannot be seen from outside. A module says it in an
    attribute `maps`, of paths below it: `None` for a layer or weight that is not applied to the
    state, such as one for the input inside the cell, and `Maps` for what is: a weight that holds
    several maps, or a tensor that is the weight of no layer.

    Args:
        model: a model with `DEQ` layers, or a cell itself.
        layers: only weights whose path matches one of these patterns, such as `*expand*`; None for
            all.

    Returns:
        One for each, in the order of the modules.

    Raises:
        ValueError: there is none; the message says where it was looked. Or a pattern matches none,
            and the message names all. Or one is lazy, or `maps` names what is not there.

    Example:
        >>> class Cell(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.state, self.input = nn.Linear(64, 64), nn.Linear(10, 64)
        ...         self.maps = {"input": None}
    """
    owners = [(path, m) for path, m in walk_modules(model) if isinstance(m, DEQ)]
    cells: list[tuple[str, nn.Module]] = []
    for path, layer in owners:
        if (module := module_of(layer.cell)) is not None:
            cells.append((_join(path, "cell"), module))
    if not owners:
        cells = [("", model)]
    found: dict[tuple[int, ...], RecurrentWeight] = {}
    for prefix, cell in cells:
        for weight in _walk(cell, prefix, {}):
            tensors = weight.tensors()
            if any(map(is_lazy, tensors)):
                raise ValueError(f"{weight.path} is lazy and has no shape: run the model once")
            # A cell that two layers share is one, and so is a weight.
            found.setdefault(tuple(map(id, tensors)), weight)
    if not found:
        where = "the cells of its DEQ layers" if owners else "it (it has no DEQ layer)"
        raise ValueError(
            f"{type(model).__name__} has no recurrent weight: there is no linear or convolutional "
            f"layer in {where} that is applied to the state as it is. Weights that a plain "
            "function closes over are not known: make the cell a module. Of tensors that are no "
            "layer's weights, declare what they are in its attribute `maps`"
        )
    return _match(list(found.values()), layers)


def _match(weights: list[RecurrentWeight], layers: Sequence[str] | None) -> list[RecurrentWeight]:
    """Those whose path matches one of the patterns, of which each must match something."""
    if layers is None:
        return weights
    if isinstance(layers, str):
        raise TypeError(f"layers is a list of patterns, such as ['{layers}'], got '{layers}'")
    for pattern in layers:
        if not any(fnmatch.fnmatchcase(weight.path, pattern) for weight in weights):
            names = ", ".join(weight.path for weight in weights)
            raise ValueError(f"no recurrent weight matches '{pattern}'; there are: {names}")
    return [w for w in weights if any(fnmatch.fnmatchcase(w.path, p) for p in layers)]


def _walk(module: nn.Module, path: str, declared: Declared) -> Iterator[RecurrentWeight]:
    """The weights below a module, by what the modules above have declared of paths below it."""
    if "" in declared and declared[""] is None:
        return
    declared = {**_own(module, path), **declared}  # who is further out knows what it is used for
    usual = _usual(module)
    if usual and declared.get("") is not None:
        usual = dict.fromkeys(usual, declared[""])
    for name, maps in {**usual, **_tensors(module, declared)}.items():
        if maps is not None:
            yield RecurrentWeight(path=_join(path, name), layer=module, name=name, maps=maps)
    for name, child in module.named_children():
        # The start of a layer inside the cell is made once, before its solve.
        if name == "parametrizations" or (isinstance(module, DEQ) and name != "cell"):
            continue
        below = {
            key.removeprefix(name).removeprefix("."): maps
            for key, maps in declared.items()
            if key == name or key.startswith(f"{name}.")
        }
        yield from _walk(child, _join(path, name), below)


def _own(module: nn.Module, path: str) -> Declared:
    """What a module declares; an attribute of that name that is something else is left alone.

    Raises:
        ValueError: it has declared the maps of what it has not.
    """
    given: Any = getattr(module, "maps", None)
    if not isinstance(given, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Maps | None)
        for key, value in cast(Mapping[object, object], given).items()
    ):
        return {}
    maps = cast(Declared, given)
    for key, value in maps.items():
        parent, _, name = key.rpartition(".")
        try:
            there = hasattr(module.get_submodule(parent), name)
        except AttributeError:
            there = False
        if value is not None and not there:
            raise ValueError(
                f"{type(module).__name__}{f' ({path})' if path else ''} declares maps of '{key}', "
                "and has no such layer or weight"
            )
    return maps


def _usual(module: nn.Module) -> dict[str, Maps | None]:
    """The weights of a known layer that are taken to be applied to the state."""
    if isinstance(module, nn.Linear):
        return {"weight": Maps()}
    if isinstance(module, _ConvNd):
        transposed = isinstance(module, _ConvTransposeNd)
        outputs = module.in_channels if transposed else module.out_channels
        rows = (outputs // module.groups,) * module.groups if module.groups > 1 else ()
        return {"weight": Maps(rows=rows, transposed=transposed)}
    if isinstance(module, nn.MultiheadAttention):
        whole: Tensor | None = getattr(module, "in_proj_weight", None)
        if whole is not None:
            return {"in_proj_weight": Maps(rows=(len(whole) // 3,) * 3)}
        return {f"{kind}_proj_weight": Maps() for kind in "qkv"}
    if isinstance(module, RNNCellBase):
        gates = module.weight_hh.shape[0] // module.hidden_size
        return {"weight_hh": Maps(rows=(module.hidden_size,) * gates if gates > 1 else ())}
    return {}


def _tensors(module: nn.Module, declared: Declared) -> dict[str, Maps | None]:
    """What has been declared of tensors of the module itself."""
    own = {*_collect_tensors(module), *getattr(module, "parametrizations", {})}
    return {name: maps for name, maps in declared.items() if name in own}


def _collect_tensors(module: nn.Module) -> dict[str, Tensor | None]:
    """The parameters and buffers of a module itself, with those that are None."""
    return {**module._buffers, **module._parameters}  # pyright: ignore[reportPrivateUsage]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
