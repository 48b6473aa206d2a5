"""From a trained network to an .inr file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from equilibria.run.models import EquilibriumModel, Model
from equilibria.zoo.signal.data import Shape, Signal
from equilibria.zoo.signal.data.shape import NOISE
from equilibria.zoo.signal.predict import file
from equilibria.zoo.signal.predict.decoder import Decoder
from equilibria.zoo.signal.predict.file import Network

__all__ = ["POINTS", "SEED", "encode"]

POINTS = 50_000
"""Near the surface of a shape, on which its IoU is measured: as near as in the released code, ten
times nearer than in the recipe `shape`, whose own figure is therefore higher."""

SEED = 20_221
"""Of these points."""


def encode(
    path: str | Path, model: Model, signal: Signal | Shape, *, noise: float = NOISE
) -> Decoder:
    """Write a signal that a network has learned to an .inr file, whole or not at all.

    Args:
        path: ends with .inr.
        model: the network.
        signal: that it was trained on.
        noise: of a shape, how far from its surface the points lie at which its IoU is measured;
            see `Shape.near_surface`.

    Returns:
        A decoder of what was written, whose `about` has the quality that was measured through it.

    Raises:
        ValueError: the ending is another, or a weight is not finite.
        DataError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".inr":
        raise ValueError(f"encoded signals are written to .inr files; got {path.name}")
    weights = {
        name: value.detach().to("cpu", torch.float32).contiguous()
        for name, value in model.state_dict().items()
    }
    for name, value in weights.items():
        if not value.isfinite().all():
            raise ValueError(f"the weights {name} are not finite: train again")
    solver = None
    if isinstance(model, EquilibriumModel):
        solver = model.deq.eval_solver or model.deq.solver
    config: Any = model.config
    network = Network(model=config, solver=solver)
    stored = network.build().to_empty(device=next(model.parameters()).device)
    stored.load_state_dict(weights)
    decoder = Decoder(stored, signal.field, solver, {})
    if isinstance(signal, Shape):
        drawn = signal.near_surface(POINTS, SEED, noise)
        found = decoder.decode(drawn.points)
        quality = {"iou": signal.near_surface_iou(found.values, drawn), "noise": noise}
    else:
        found = decoder.decode(signal.points)
        quality = {"psnr": signal.psnr(found.values)}
    about = {
        "name": signal.name,
        "field": signal.field.as_dict(),
        "quality": quality,
        "converged": None if solver is None else found.converged,
        "evaluations": None if solver is None else float(found.evals.double().mean()),
    }
    return replace(decoder, about=file.write(path, network, weights, about))
