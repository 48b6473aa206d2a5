"""What the tasks on signals share: the model's config, and what a run folder keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from equilibria.run.data import stored
from equilibria.run.data.errors import DataError, reading
from equilibria.run.data.regular import read_bytes
from equilibria.run.data.replace import replace_file
from equilibria.run.models import ModelConfig
from equilibria.zoo.signal.data import Field, ShapeField, field_of
from equilibria.zoo.signal.model.configs import LayeredConfig, RepresentationConfig, SineConfig

__all__ = ["SIGNAL", "Described", "checksum_of", "complete", "suited_scale"]

SIGNAL = "signal.json"
"""The file of a run folder that says what the network's coordinates and values mean."""

PITCH = 3_600.0
"""Scale for a second of sound: the released recipe takes 25,000 for 7 s."""

SOLID = 32.0
"""Scale for a shape."""


def complete(
    config: ModelConfig, field: Field | ShapeField, name: str, *, held_out: bool = False
) -> ModelConfig:
    """Return the config of a network of coordinates with what the signal says filled in.

    Args:
        config: what the recipe says.
        field: of the signal.
        name: of the signal.
        held_out: whether pixels between those learned are what matters.

    Raises:
        ValueError: it is of no such network, or of one for another signal.
    """
    if not isinstance(config, RepresentationConfig):
        raise ValueError(
            f"{type(config).__name__} describes no network of coordinates: take imfn, isiren, mfn, "
            "siren-injected or siren"
        )
    facts: dict[str, Any] = {"inputs": field.inputs, "outputs": field.outputs}
    for key, value in facts.items():
        given = getattr(config, key)
        if given is not None and given != value:
            raise ValueError(
                f"model.{key} is {given}, and {name} has {value}: set it to that, or to null"
            )
    if isinstance(config, LayeredConfig) and config.scale is None:
        sines = isinstance(config, SineConfig)
        facts["scale"] = suited_scale(field, sines=sines, held_out=held_out)
    return replace(config, **facts)


def suited_scale(
    field: Field | ShapeField, *, sines: bool = False, held_out: bool = False
) -> float:
    """Return the scale of frequencies that suits a signal where a recipe leaves it open.

    Of images and films it is the pixels of the longer side, twice what the released code takes; of
    sounds 3,600 for each second, as the released 25,000 for 7 s; of shapes 32. Where every second
    row and column is learned, and the pixels between them are to be predicted, it is a quarter of
    the longer side, as released: higher frequencies fit what is learned and err in between. Where
    the activation is a sine it is half of that.

    Args:
        field: of the signal.
        sines: whether the network's activation is a sine, in place of filters.
        held_out: whether it is to predict the pixels between those that it learns.
    """
    if isinstance(field, ShapeField):
        scale = SOLID
    elif field.kind == "sound":
        assert field.rate is not None  # as `Field` has checked
        scale = PITCH * field.shape[0] / field.rate
    else:
        scale = float(max(field.shape[-2:])) / (4 if held_out else 1)
    return scale / 2 if sines else scale


def checksum_of(name: str, field: Field | ShapeField, *content: Tensor) -> str:
    """Return ``sha256:...`` over a signal and what it means."""
    total = hashlib.sha256(f"{name} {field}".encode())
    for each in content:
        total.update(each.contiguous().numpy().tobytes())
    return f"sha256:{total.hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a run folder keeps of the signal, so that its network can be decoded without it.

    Attributes:
        name: of the signal.
        field: what the network's coordinates and values mean.
    """

    name: str
    field: Field | ShapeField

    def save(self, folder: Path) -> None:
        """Write signal.json into a run folder."""
        content = {"name": self.name, "field": self.field.as_dict()}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        replace_file(folder / SIGNAL, text.encode())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from a run folder.

        Raises:
            DataError: there is none, or it is damaged.
        """
        path = folder / SIGNAL
        with reading(path, json.JSONDecodeError, UnicodeDecodeError):
            content = json.loads(read_bytes(path, stored.MOST))
        try:
            if not isinstance(content, Mapping):
                raise ValueError("no mapping")
            return cls(name=str(content["name"]), field=field_of(content["field"]))
        except (ValueError, KeyError) as error:
            raise DataError(f"{path} is damaged ({error})") from None
