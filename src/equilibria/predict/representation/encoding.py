"""From a trained network to an .inr file, and what that is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equilibria.data.signals import Field, Shape, ShapeField, Signal
from equilibria.data.signals.shape import NOISE
from equilibria.models import EquilibriumModel, Model
from equilibria.predict.representation import file
from equilibria.predict.representation.decoder import Decoder, Progress
from equilibria.predict.representation.file import Contents, Network

__all__ = ["POINTS", "SEED", "Encoded", "encode", "measure", "offset"]

POINTS = 50_000
"""Near the surface of a shape, on which its IoU is measured: as near as in the released code, ten
times nearer than in the recipe `shape`, whose own figure is therefore higher."""

SEED = 20_221
"""Of these points."""


@dataclass(frozen=True)
class Encoded:
    """An .inr file that was written.

    Attributes:
        path: of the file.
        bytes: its size.
        contents: what it says.
        decoder: of what it holds.
    """

    path: Path
    bytes: int
    contents: Contents
    decoder: Decoder

    @property
    def rate(self) -> float | None:
        """Bits of the file for each pixel of an image or film, or sample of a sound; None of a
        shape."""
        field = self.contents.field
        return 8 * self.bytes / math.prod(field.shape) if isinstance(field, Field) else None


def encode(
    path: Path,
    model: Model,
    signal: Signal | Shape,
    *,
    noise: float = NOISE,
    chunk: int | None = None,
    progress: Progress = lambda count: None,
) -> Encoded:
    """Write a signal that a network has learned to an .inr file, whole or not at all.

    Args:
        path: ends with .inr.
        model: the network.
        signal: that it was trained on.
        noise: of a shape, how far from its surface the points lie at which its IoU is measured;
            see `Shape.near_surface`.
        chunk: points that are decoded at a time; None: by the memory there is.
        progress: told how many points have been decoded.

    Raises:
        ValueError: the ending is another, or a weight is not finite.
        DataError: the file cannot be written.
    """
    solver = None
    if isinstance(model, EquilibriumModel):
        solver = model.deq.eval_solver or model.deq.solver
    config: Any = model.config
    weights = {
        name: value.detach().to("cpu", torch.float32) for name, value in model.state_dict().items()
    }
    contents = Contents(
        field=signal.field,
        network=Network(model=config, solver=solver),
        weights=weights,
        name=signal.name,
        quality={"noise": noise} if isinstance(signal, Shape) else {},
    )
    device = next(model.parameters()).device
    decoder = Decoder.of(contents, device=device)
    contents = replace(contents, **measure(decoder, signal, chunk=chunk, progress=progress))
    size = file.write(path, contents)
    return Encoded(path, size, contents, replace(decoder, about=contents.about()))


@torch.no_grad()
def offset(model: Model, signal: Signal, chunk: int = 4096) -> None:
    """Add what a fit of an image's gradient leaves open to the network's output: the constant that
    fits its values best.

    Args:
        model: the network; its head's bias is changed.
        signal: the image.
        chunk: points at a time.
    """
    network: Any = model
    head = network.head
    sums = torch.zeros_like(head.bias, dtype=torch.float64)
    for x, y in zip(signal.points.chunks(chunk), signal.targets.split(chunk), strict=True):
        found = network(x.to(head.bias)).output
        sums += (y.to(found) - found).double().sum(0)
    head.bias += (sums / len(signal.points)).to(head.bias)


def measure(
    decoder: Decoder,
    signal: Signal | Shape,
    *,
    chunk: int | None = None,
    progress: Progress = lambda count: None,
) -> dict[str, Any]:
    """Return how well a signal is represented: `quality`, `converged` and `evaluations` of a file.

    A signal with another range of values, or a mesh elsewhere in space, is compared in the units
    of the files.

    Args:
        decoder: of the file, which says near what a shape is measured: its `noise`.
        signal: that was encoded.
        chunk, progress: see `Decoder.decode`.

    Raises:
        ValueError: it is a signal of another kind or size.
    """
    mine, other = decoder.field, signal.field
    if isinstance(signal, Signal):
        if not isinstance(mine, Field) or (mine.kind, mine.shape, mine.channels) != (
            signal.field.kind,
            signal.field.shape,
            signal.field.channels,
        ):
            raise ValueError(f"{_words(other)} is compared with {_words(mine)}")
        found = decoder.decode(chunk=chunk, progress=progress)
        values = found.values
        if (mine.low, mine.high) != (signal.field.low, signal.field.high):
            values = signal.field.normalised(mine.restored(values))
        quality = {"psnr": signal.psnr(values)}
    else:
        if not isinstance(mine, ShapeField):
            raise ValueError(f"{_words(other)} is compared with {_words(mine)}")
        noise = decoder.about["quality"].get("noise", NOISE)
        drawn = signal.near_surface(POINTS, SEED, noise)
        points = drawn.points
        if mine != signal.field:
            places = signal.field.restored(points.double().numpy())
            points = torch.from_numpy((places - np.array(mine.centre)) / mine.scale)
        found = decoder.decode(points, chunk=chunk, progress=progress)
        quality = {"iou": signal.near_surface_iou(found.values, drawn), "noise": noise}
    evaluations = None if found.evals is None else float(found.evals.double().mean())
    return {"quality": quality, "converged": found.converged, "evaluations": evaluations}


def _words(field: Any) -> str:
    """A field in words, such as "an image of 64 x 64 x 1"."""
    if field.kind == "shape":
        return "a shape"
    size = " x ".join(map(str, (*field.shape, field.channels)))
    return f"{'an' if field.kind == 'image' else 'a'} {field.kind} of {size}"
