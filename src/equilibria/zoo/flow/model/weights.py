"""Released weights: checkpoints of RAFT, of GMA and of the thesis' networks for optical flow."""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equilibria.words import list_some
from equilibria.zoo.flow.model.configs import (
    DEQGMAConfig,
    DEQRAFTConfig,
    DEQRAFTSmallConfig,
    EquilibriumFlowConfig,
    FlowConfig,
    GMAConfig,
    RAFTConfig,
    RAFTSmallConfig,
)
from equilibria.zoo.flow.model.network import DEQFlow, UnrolledFlow


class WeightsError(ValueError):
    """Weights that are damaged, or those of another network; the message names file or tensors."""


State = Mapping[str, Tensor]
"""Tensors of a checkpoint by their names in RAFT's layout."""

# Names of the same thing in GMA and in the two releases of the thesis' code, and in RAFT's layout.
_RENAMED = (
    (re.compile(r"^module\."), ""),
    (re.compile(r"^attn\."), "att."),
    (re.compile(r"^mask\."), "update_block.mask."),
    (re.compile(r"^update_block\.gma\."), "update_block.aggregator."),
)

_UNREAD = re.compile(r"^att\.pos_emb\.")
"""GMA's embeddings of positions, which stand in all its checkpoints; the published network does not
use them. Its variants that do have the same tensors, and cannot be told from it."""

_SECOND_NAME = re.compile(r"^([fc]net\.layer\d\.0)\.norm[34]\.(\w+)$")
"""The norm of a shortcut, which is saved under `downsample.1` too."""

_SUFFIXES = {
    "parametrizations.weight.original0": "weight_g",
    "parametrizations.weight.original1": "weight_v",
}
"""Length and direction of a normalised weight."""


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, by their names in RAFT's layout.

    The file is a `.pth` that `torch.save` wrote of a state dict. Nothing in it is run.

    Args:
        path: of the file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        WeightsError: it is damaged, or holds something else than tensors by name.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of many classes: torch's reader, zipfile, pickle
        reason = (str(error).strip() or "it ends early").splitlines()[0]
        if isinstance(error, LookupError):  # the reader of pickles met a byte that it does not know
            reason = "torch.save has not written it"
        elif isinstance(error, pickle.UnpicklingError):  # torch advises to run what is in it
            reason = "it holds more than tensors and numbers"
        raise WeightsError(
            f"{path} is damaged, or no checkpoint that torch.load(weights_only=True) reads "
            f"({reason})"
        ) from None
    if not isinstance(found, Mapping) or not found:
        raise WeightsError(
            f"{path} holds no state dict: expected tensors by name, got {type(found).__name__}"
        )
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise WeightsError(
                f"{path} holds no state dict: expected tensors by name, got "
                f"{type(value).__name__} for {key!r}"
            )
    return {_canonical(key): value for key, value in found.items()}


def config_of(state: State) -> RAFTConfig | RAFTSmallConfig | GMAConfig | EquilibriumFlowConfig:
    """Return the network that a checkpoint is of, from the names and shapes of its tensors.

    RAFT, the small RAFT, GMA; or, where the encoder of the context gives no first hidden state,
    DEQ-RAFT or DEQ-GMA of any size, with weight normalisation or without.

    Args:
        state: of `read_state`.

    Raises:
        WeightsError: it is of none of these.
    """
    small = "update_block.gru.convz.bias" in state
    number = "" if small else "1"
    hidden = _channels(state, f"update_block.gru.convz{number}.bias")
    outputs = _channels(state, "cnet.conv2.bias")
    encoder = "small" if "fnet.layer1.0.conv3.bias" in state else "basic"
    last = {"basic": 2, "small": 3}[encoder]
    normed = "update_block.encoder.convc1.weight_v" in state
    looked = "update_block.encoder.convc1.weight" + ("_v" if normed else "")
    levels, radius = _lookup(_channels(state, looked, 1))
    convex = "update_block.mask.0.bias" in state
    attention = "att.to_qk.weight" in state
    fields: dict[str, Any] = {
        "encoder": encoder,
        "stages": tuple(
            _channels(state, f"fnet.layer{stage}.0.conv{last}.bias") for stage in (1, 2, 3)
        ),
        "features": _channels(state, "fnet.conv2.bias"),
        "context_norm": "batch" if "cnet.norm1.running_mean" in state else "none",
        "levels": levels,
        "radius": radius,
        "upsampling": "convex" if convex else "bilinear",
    }
    if convex:
        fields["mask"] = _channels(state, "update_block.mask.0.bias")
    if not small:
        fields["hidden"] = hidden
        fields["head"] = _channels(state, "update_block.flow_head.conv1.bias")
    if small:
        return RAFTSmallConfig(**fields)
    if outputs == 2 * hidden and not normed:
        return (GMAConfig if attention else RAFTConfig)(**fields)
    fields["weight_norm"] = normed
    fields["start"] = "zeros" if outputs == hidden else "context"
    return (DEQGMAConfig if attention else DEQRAFTConfig)(**fields)


def load_checkpoint(
    path: str | Path, *, equilibrium: bool = False, **options: Any
) -> UnrolledFlow | DEQFlow:
    """Return the network that a released checkpoint is of, with its weights, in eval mode.

    Args:
        path: a `.pth` of RAFT, GMA or the thesis' networks.
        equilibrium: solve the refinement of RAFT or GMA for its equilibrium, from the hidden state
            that they begin with; the thesis' networks are solved anyhow.
        **options: fields of the config that change no weight, such as `correlation`, `steps` or
            `eval_steps`, and keywords of the `DEQ` layer of a network that is solved: `solver`,
            `eval_solver`, `adjoint`, `drop_finished`.

    Raises:
        OSError: there is no such file, or it cannot be read.
        WeightsError: it is no checkpoint of these networks; the message names tensors.
        TypeError: the network has no such option.

    Example:
        >>> model = load_checkpoint("raft-things.pth", equilibrium=True, solver=eq.Anderson())
        >>> flow = model((first, second)).output
    """
    state = read_state(path)
    try:
        config: FlowConfig = config_of(state)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from None
    if equilibrium and not isinstance(config, EquilibriumFlowConfig):
        config = as_equilibrium(config)
    names = {field.name for field in dataclasses.fields(config)}
    changes = {key: options.pop(key) for key in [*options] if key in names}
    model: Any = dataclasses.replace(config, **changes).build(**options)
    try:
        load_state(model, state)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from None
    return model.eval()


def as_equilibrium(config: FlowConfig) -> EquilibriumFlowConfig:
    """Return the config of RAFT, the small RAFT or GMA solved as an equilibrium.

    The network has the same tensors, with `deq.cell` in place of `cell` in their names.

    Raises:
        TypeError: it is the config of something else.
    """
    kinds = {
        RAFTConfig: DEQRAFTConfig,
        GMAConfig: DEQGMAConfig,
        RAFTSmallConfig: DEQRAFTSmallConfig,
    }
    if type(config) not in kinds:
        raise TypeError(f"{type(config).__name__} is not the config of an unrolled network")
    fields = {k: v for k, v in vars(config).items() if k not in ("steps", "eval_steps")}
    return kinds[type(config)](**fields, weight_norm=False, start="context")


@torch.no_grad()
def load_state(model: UnrolledFlow | DEQFlow, state: State) -> None:
    """Put the tensors of a checkpoint into a network.

    Args:
        model: that begins with them.
        state: of `read_state`.

    Raises:
        WeightsError: tensors are missing, have no place in the network or another shape; the
            message names them, and nothing has been changed.
    """
    own = model.state_dict()
    several = any(".gru.passes.1." in key for key in own)
    sources = {key: _sources(key, several) for key in own}
    wanted = {name for names in sources.values() for name in names}
    missing = sorted(wanted - {*state})
    unexpected = sorted(name for name in {*state} - wanted if not _is_spare(name, state))
    if missing or unexpected:
        parts = [
            f"{len(names)} {what}: {list_some(names, 6)}"
            for names, what in ((missing, "missing"), (unexpected, "unexpected"))
            if names
        ]
        raise WeightsError(
            f"the weights are not those of a {model.config.title} with these fields; "
            f"{'; '.join(parts)}"
        )
    values: dict[str, Tensor] = {}
    for key, names in sources.items():
        given = [state[name] for name in names]
        value = torch.cat(given) if len(given) > 1 else given[0]
        if value.shape != own[key].shape:
            raise WeightsError(
                f"{' and '.join(names)} have the shape {tuple(value.shape)} in the file, and "
                f"{tuple(own[key].shape)} in a {model.config.title} with these fields"
            )
        if value.is_floating_point() != own[key].is_floating_point():
            kinds = [str(each.dtype).removeprefix("torch.") for each in (value, own[key])]
            raise WeightsError(f"{' and '.join(names)} must be {kinds[1]}, and are {kinds[0]}")
        values[key] = value
    model.load_state_dict(values)


def _canonical(name: str) -> str:
    for pattern, instead in _RENAMED:
        name = pattern.sub(instead, name)
    return name


def _is_spare(name: str, state: State) -> bool:
    """Whether a tensor is one that no network reads, or another name of one that is read."""
    if _UNREAD.match(name):
        return True
    if not (match := _SECOND_NAME.match(name)):
        return False
    twin = state.get(f"{match[1]}.downsample.1.{match[2]}")
    return twin is not None and torch.equal(twin, state[name])


def _sources(key: str, several: bool) -> list[str]:
    """The names in RAFT's layout of the tensors that one of ours is made of, one below the other.

    Passes of a GRU are numbered there only if there are `several`.
    """
    module, _, kind = key.removeprefix("deq.").rpartition(".")
    for ours, theirs in _SUFFIXES.items():
        if key.endswith(f".{ours}"):
            module, kind = key.removeprefix("deq.").removesuffix(f".{ours}"), theirs
    return [f"{name}.{kind}" for name in _modules(module.split("."), several)]


def _modules(path: list[str], several: bool) -> list[str]:
    """The modules in RAFT's layout that one of ours is made of."""
    match path:
        case ["scene", ("features" | "context") as which, *rest]:
            net = "fnet" if which == "features" else "cnet"
            return [f"{net}.{_encoder(rest)}"]
        case ["scene", "attention", "query_key"]:
            return ["att.to_qk"]
        case ["cell", "motion", ("correlation" | "flow") as which, place]:
            return [f"update_block.encoder.conv{which[0]}{int(place) // 2 + 1}"]
        case ["cell", "motion", "joint", "0"]:
            return ["update_block.encoder.conv"]
        case ["cell", "aggregate"]:
            return ["update_block.aggregator"]
        case ["cell", "aggregate", "value"]:
            return ["update_block.aggregator.to_v"]
        case ["cell", "gru", "passes", number, which]:
            suffix = str(int(number) + 1) if several else ""
            return [f"update_block.gru.conv{gate}{suffix}" for gate in _GATES[which]]
        case ["cell", "head", place]:
            return [f"update_block.flow_head.conv{int(place) // 2 + 1}"]
        case ["upsampling", "mask", place]:
            return [f"update_block.mask.{place}"]
        case _:
            raise AssertionError(f"{'.'.join(path)} has no name in RAFT's layout")


_GATES = {"gates": "zr", "candidate": "q"}


def _encoder(path: list[str]) -> str:
    """A module of an encoder in RAFT's layout."""
    match path:
        case ["stem"]:
            return "conv1"
        case ["norm"]:
            return "norm1"
        case ["head"]:
            return "conv2"
        case ["stages", stage, block, "shortcut", place]:
            return f"layer{int(stage) + 1}.{block}.downsample.{place}"
        case ["stages", stage, block, "body", place]:
            number, part = divmod(int(place), 3)
            return f"layer{int(stage) + 1}.{block}.{('conv', 'norm')[part]}{number + 1}"
        case _:
            raise AssertionError(f"{'.'.join(path)} has no name in RAFT's layout")


def _channels(state: State, name: str, axis: int = 0) -> int:
    if name not in state:
        example = ", ".join([*state][:3])
        raise WeightsError(
            f"no weights of RAFT, GMA or a network of the thesis: there is no {name}; there are "
            f"{example} and others"
        )
    return state[name].shape[axis]


def _lookup(channels: int) -> tuple[int, int]:
    """Levels and radius of a lookup: all released networks have four levels."""
    levels = 4
    side = math.isqrt(channels // levels)
    if levels * side**2 != channels or side % 2 == 0:
        raise WeightsError(
            f"the weights read {channels} channels of correlation, which four levels with a square "
            "window of odd side do not have"
        )
    return levels, (side - 1) // 2
