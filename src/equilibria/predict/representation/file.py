"""The .inr file: a signal as the weights of its network, and what has to be known to decode it.

It is a safetensors file with one entry of metadata, `inr`, whose value is JSON:

    format      1
    library     version of equilibria that wrote it
    name        of the file that was encoded
    field       what the grid of samples means, see `data.signals.Field` and `ShapeField`
    model       name and config of the network
    solver      name and settings of its solver; null of an explicit network
    quality     PSNR in dB on the grid of the signal, {"psnr": 38.2}; of a shape {"iou": .97,
                "noise": .02}, at points that lie so far from its surface
    converged   share of the solves on that grid that converged; null of an explicit network
    evaluations mean over these
    checksum    SHA-256 of the tensors
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

import equilibria
from equilibria import files
from equilibria.data.replace import replace_file
from equilibria.data.signals import Field, ShapeField, field_of
from equilibria.models import Model, ModelConfig
from equilibria.models.representation.configs import RepresentationConfig
from equilibria.solve import JacobianFree, Solver
from equilibria.train import config
from equilibria.train import recipe as recipes
from equilibria.train.config import ConfigError
from equilibria.train.weights import digest

__all__ = ["FORMAT", "Contents", "InrError", "build", "read", "write"]

FORMAT = 1
"""Of the files that this version writes, and the newest that it reads."""

KEY = "inr"
"""Of the metadata."""


class InrError(ValueError):
    """What is named is no .inr file, is damaged, or cannot be decoded as asked."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """What of a file is a network.

    Args:
        model: architecture.
        solver: of the fixed point; None of an explicit network.
    """

    model: ModelConfig
    solver: Solver | None = None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a file says.

    Attributes:
        field: what is encoded, without its values.
        network: its architecture and solver.
        weights: float32.
        name: of the file that was encoded.
        quality: `{"psnr": ...}` in dB, of a shape `{"iou": ..., "noise": ...}`, on the grid that
            was encoded, or at points that lie so far from the surface.
        converged: share of the solves there that converged; None of an explicit network.
        evaluations: of a solve there, on average; None likewise.
        library: version of equilibria that wrote it.
    """

    field: Field | ShapeField
    network: Network
    weights: Mapping[str, Tensor] = dataclasses.field(repr=False)
    name: str = ""
    quality: Mapping[str, float] = dataclasses.field(default_factory=dict)
    converged: float | None = None
    evaluations: float | None = None
    library: str = equilibria.__version__

    def about(self) -> dict[str, Any]:
        """Everything but the weights, as plain numbers and words."""
        network = config.dump(self.network, recipes.choices())
        return {
            "format": FORMAT,
            "library": self.library,
            "name": self.name,
            "field": self.field.as_dict(),
            "model": network["model"],
            "solver": network["solver"],
            "quality": dict(self.quality),
            "converged": self.converged,
            "evaluations": self.evaluations,
        }


def write(path: Path, contents: Contents) -> int:
    """Write a file, whole or not at all, and return its size in bytes.

    Args:
        path: ends with .inr.
        contents: what it says.

    Raises:
        ValueError: the ending is another, or a weight is not finite.
        DataError: it cannot be written; what was there before is unchanged.
    """
    if path.suffix.lower() != ".inr":
        raise ValueError(f"encoded signals are written to .inr files; got {path.name}")
    tensors = {name: value.contiguous() for name, value in contents.weights.items()}
    _check_weights(tensors)
    about = contents.about() | {"checksum": digest(tensors)}
    content = save(tensors, {KEY: files.to_json(about)})
    replace_file(path, content)
    return len(content)


def read(path: Path) -> Contents:
    """Read a file. Nothing in it is unpickled or run.

    Raises:
        InrError: there is no such file; it is another one, truncated, damaged or of a newer
            version; or config, field and weights do not fit each other.
    """
    tensors, about = _opened(path)
    version = about.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise InrError(
            f"{path} has format {version} of equilibria {about.get('library')}, and this version, "
            f"{equilibria.__version__}, reads format {FORMAT}: update equilibria"
        )
    if about.get("checksum") != digest(tensors):
        raise InrError(f"{path} is damaged: its weights do not have the checksum in it")
    try:
        found = _contents(tensors, about)
        _check(found)
    except (ConfigError, ValueError, TypeError, KeyError) as error:
        raise InrError(f"{path} is damaged, or not written by equilibria encode: {error}") from None
    return found


def build(contents: Contents, dtype: torch.dtype = torch.float32) -> Model:
    """Return the network of a file in eval mode, on the CPU. The random state is left alone."""
    with torch.device("meta"):
        model = _model(contents.network)
    model = model.to_empty(device="cpu")
    model.load_state_dict(contents.weights)
    return model.to(dtype).eval()


def _opened(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if path.is_dir() or not path.exists():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InrError(f"{path} {what}: name a file that `equilibria encode` wrote")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            tensors = {key: file.get_tensor(key) for key in file.keys()} if text else {}  # noqa: SIM118
    except Exception as error:  # safetensors raises its own class
        raise InrError(f"{path} {_wrong(path, error)}") from None
    try:
        about = files.from_json(text or "null")
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise InrError(
            f"{path} is a safetensors file, but not of a signal: name one that `equilibria encode` "
            "wrote"
        )
    return tensors, cast(dict[str, Any], about)


def _wrong(path: Path, error: Exception) -> str:
    """What is wrong with a file that safetensors cannot open."""
    with path.open("rb") as file:
        begin = file.read(256)
    if f'"{KEY}"'.encode() in begin:
        return f"is truncated or damaged ({error}): copy it again"
    return "is no .inr file: name one that `equilibria encode` wrote"


def _contents(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Contents:
    tree = {name: about[name] for name in ("model", "solver")}
    network = config.build(Network, tree, recipes.choices(), source="its network")
    numbers = {name: about[name] for name in ("converged", "evaluations")}
    numbers |= {f"quality.{name}": value for name, value in about["quality"].items()}
    for name, value in numbers.items():
        if not isinstance(value, int | float | None):
            raise ValueError(f"{name} is {value!r}")
    noise = about["quality"].get("noise", 0.0)
    if noise is None or not 0 <= noise < math.inf:
        raise ValueError(f"quality.noise is {noise!r}")
    _check_weights(tensors)
    return Contents(
        field=field_of(about["field"]),
        network=network,
        weights=tensors,
        name=str(about["name"]),
        quality=about["quality"],
        converged=about["converged"],
        evaluations=about["evaluations"],
        library=str(about["library"]),
    )


def _check_weights(weights: Mapping[str, Tensor]) -> None:
    for name, value in weights.items():
        if value.dtype != torch.float32:
            raise ValueError(f"{name} is {value.dtype}: weights are float32")
        if not bool(value.isfinite().all()):
            raise ValueError(f"the weights {name} are not finite")


def _check(contents: Contents) -> None:
    """Raise ValueError unless config, field and weights fit, before anything large is made."""
    architecture, field = contents.network.model, contents.field
    if not isinstance(architecture, RepresentationConfig):
        raise ValueError(f"{architecture.title} is no network of coordinates")
    if architecture.implicit and contents.network.solver is None:
        raise ValueError(f"{architecture.title} has no solver")
    for name in ("inputs", "outputs"):
        if getattr(architecture, name) != getattr(field, name):
            raise ValueError(
                f"{name} of the model is {getattr(architecture, name)}, and of the "
                f"{field.kind} {getattr(field, name)}"
            )
    deep = getattr(architecture, "layers", getattr(architecture, "hidden", 0))
    if deep > len(contents.weights):
        raise ValueError(f"{deep} layers, and {len(contents.weights)} tensors")
    with torch.device("meta"):
        expected = _model(contents.network).state_dict()
    there = {name: tuple(value.shape) for name, value in contents.weights.items()}
    here = {name: tuple(value.shape) for name, value in expected.items()}
    if wrong := [name for name in {**there, **here} if there.get(name) != here.get(name)]:
        name, more = wrong[0], f" (and {len(wrong) - 1} others)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{name} is {there.get(name, 'not there')} in the file, {here.get(name, 'unknown')} by "
            f"the config{more}"
        )


def _model(network: Network) -> Model:
    if not network.model.implicit:
        return network.model.build()
    # Decoding differentiates by an adjoint of its own.
    return network.model.build(solver=network.solver, adjoint=JacobianFree())
