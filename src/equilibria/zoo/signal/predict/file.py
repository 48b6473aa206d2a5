"""The .inr file: a signal as the weights of its network, and what has to be known to decode it.

It is a safetensors file with one entry of metadata, `inr`, whose value is JSON:

    format      1
    library     version of equilibria that wrote it
    name        of the file that was encoded
    field       what the grid of samples means, see `zoo.signal.data.SignalField` and `ShapeField`
    model       name and config of the network
    solver      name and settings of its solver; null of an explicit network
    quality     PSNR in dB on the grid of the signal, {"psnr": 38.2}; of a shape {"iou": .97,
                "noise": .02}, at points that lie so far from its surface
    converged   share of the solves on that grid that converged; null of an explicit network
    evaluations mean over these
    checksum    SHA-256 of the tensors
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

import equilibria
from equilibria import files
from equilibria.run import config
from equilibria.run import recipe as recipes
from equilibria.run.data import storage
from equilibria.run.data.storage import replace_file
from equilibria.run.models import Model, ModelConfig
from equilibria.run.weights import digest, read_weights_like
from equilibria.solve import JacobianFree, Solver
from equilibria.zoo.signal.data import ShapeField, SignalField, field_of
from equilibria.zoo.signal.model.configs import RepresentationConfig

FORMAT = 1
"""Of the files that this version writes, and the newest that it reads."""

KEY = "inr"
"""Of the metadata."""


class InrError(ValueError):
    """What is named is no .inr file, is damaged, or cannot be decoded as asked."""


class _PSNR(TypedDict):
    psnr: float


class _IoU(TypedDict):
    iou: float


class _OfSignal(TypedDict):
    quality: _PSNR


class _OfShape(TypedDict):
    quality: _IoU


@dataclass(frozen=True, kw_only=True)
class Network:
    """What of a file is a network.

    Args:
        model: architecture.
        solver: of the fixed point; None of an explicit network.
    """

    model: ModelConfig
    solver: Solver | None = None

    def build(self) -> Model:
        """Return the network in eval mode, on the device "meta": no memory is taken, and the random
        state is left alone."""
        with torch.device("meta"):
            if not self.model.implicit:
                return self.model.build().eval()
            # Decoding differentiates by an adjoint of its own.
            return self.model.build(solver=self.solver, adjoint=JacobianFree()).eval()


def write(
    path: Path, network: Network, weights: dict[str, Tensor], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a file, whole or not at all, and return all that it says.

    Args:
        path: of the file.
        network: architecture and solver.
        weights: float32, contiguous, on the CPU.
        about: `name`, `field`, `quality`, `converged` and `evaluations`, as JSON has them.

    Raises:
        DataError: it cannot be written; what was there before is unchanged.
    """
    whole = {
        "format": FORMAT,
        "library": equilibria.__version__,
        **config.dump(network, recipes.choices()),
        **about,
        "checksum": digest(weights),
    }
    replace_file(path, save(weights, {KEY: files.to_json(whole)}))
    return whole


def read(path: Path) -> tuple[Model, SignalField | ShapeField, Solver | None, dict[str, Any]]:
    """Read the network of a file, in eval mode; its field, its solver, and all that the file says.

    Nothing in it is unpickled or run.

    Raises:
        InrError: there is no such file; it is another one, truncated, damaged or of a newer
            version; or config, field and weights do not fit each other.
    """
    about, tensors = _about(path)
    version = about.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise InrError(
            f"{path} has format {version} of equilibria {about.get('library')}, and this version, "
            f"{equilibria.__version__}, reads format {FORMAT}: update equilibria"
        )
    try:
        field = field_of(about["field"])
        storage.check(about, _OfShape if field.kind == "shape" else _OfSignal)
        tree = {name: about[name] for name in ("model", "solver")}
        network = config.build(Network, tree, recipes.choices(), source="its network")
        _check(network, field, tensors)
        model = network.build()
        weights = read_weights_like(path, model.state_dict(), "its header")
        if about["checksum"] != digest(weights):
            raise ValueError("its weights do not have the checksum in it")
        if not all(w.dtype == torch.float32 and w.isfinite().all() for w in weights.values()):
            raise ValueError("its weights are not finite numbers in float32")
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        said = str(error).partition("\n")[0]  # torch adds the stack of its own C++
        said = f"its header has no {said}" if isinstance(error, KeyError) else said
        raise InrError(f"{path} is damaged, or not written by equilibria encode: {said}") from None
    model = model.to_empty(device="cpu")
    model.load_state_dict(weights)
    return model, field, network.solver, about


def _about(path: Path) -> tuple[dict[str, Any], int]:
    """The metadata of a file, and how many tensors it has."""
    if not path.is_file():
        raise InrError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}")
    try:
        with safe_open(path, framework="pt") as file:
            about = files.from_json((file.metadata() or {}).get(KEY, "null"))
            tensors = len(file.keys())
    except Exception as error:  # safetensors raises its own class
        raise InrError(
            f"{path} is no .inr file, or truncated ({error}): name one that `equilibria encode` "
            "wrote"
        ) from None
    if not isinstance(about, dict):
        raise InrError(
            f"{path} is a safetensors file, but not of a signal: name one that `equilibria encode` "
            "wrote"
        )
    return cast(dict[str, Any], about), tensors


def _check(network: Network, field: SignalField | ShapeField, tensors: int) -> None:
    """Raise ValueError unless network and field fit, before anything large is made."""
    architecture = network.model
    if not isinstance(architecture, RepresentationConfig):
        raise ValueError(f"{architecture.title} is no network of coordinates")
    if architecture.implicit != (network.solver is not None):
        raise ValueError(f"the solver of {architecture.title} is {network.solver}")
    for name in ("inputs", "outputs"):
        if getattr(architecture, name) != getattr(field, name):
            raise ValueError(
                f"{name} of the model is {getattr(architecture, name)}, and of the "
                f"{field.kind} {getattr(field, name)}"
            )
    deep = getattr(architecture, "layers", getattr(architecture, "hidden", 0))
    if deep > tensors:
        raise ValueError(f"{deep} layers, and {tensors} tensors")
