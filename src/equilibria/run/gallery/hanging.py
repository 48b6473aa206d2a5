"""Pictures of a gallery as they are collected, and what is common to all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from equilibria.run.models import EquilibriumModel, Model
from equilibria.run.pictures import coloured, numbers_png
from equilibria.run.settling import Settling
from equilibria.run.tasks.normalisation import Statistics

__all__ = ["Hanging", "as_it_was", "hex_of", "rtol_of"]


@dataclass
class Hanging:
    """What is being collected: the pictures with their files, and maps that share one scale."""

    pictures: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    maps: list[tuple[dict[str, Any], Tensor, tuple[int, int]]] = field(default_factory=list)

    def add(
        self, about: dict[str, Any], settled: Settling | None, size: tuple[int, int], **png: bytes
    ) -> None:
        """Add a picture.

        Args:
            about: what is told of it.
            settled: how its solve went.
            size: of its files, in pixels.
            png: files by what they show.
        """
        place = len(self.pictures)
        names = {what: f"{place}-{what}.png" for what in png}
        self.files.update({names[what]: content for what, content in png.items()})
        solve = None
        if settled is not None:
            solve = {"evals": settled.evals, "status": settled.status.name}
            if settled.after is not None:
                self.maps.append((names, settled.after, size))
                names["late"] = f"{place}-late.png"
        self.pictures.append({**about, "files": names, "solve": solve})

    def scale(self) -> dict[str, Any] | None:
        """Draw the maps in colours that mean the same in all; return which number has which."""
        if not self.maps:
            return None
        low = min(int(after.min()) for _, after, _ in self.maps)
        high = max(int(after.max()) for _, after, _ in self.maps)
        colours = coloured(high - low + 1)
        # A palette has 256 colours: of more numbers, neighbours share one.
        step = -(-len(colours) // 255)
        for names, after, size in self.maps:
            self.files[names["late"]] = numbers_png((after - low) // step, colours[::step], size)
        return {"low": low, "high": high, "colours": [hex_of(colour) for colour in colours]}


def as_it_was(image: Tensor, statistics: Statistics | None) -> Tensor:
    """An image (channels, height, width) before it was normalised."""
    if statistics is None:
        return image
    mean, deviation = (
        torch.tensor(each)[:, None, None] for each in (statistics.mean, statistics.deviation)
    )
    return image * deviation + mean


def rtol_of(model: Model) -> float:
    """The relative tolerance of the solver that evaluates; 0 of an explicit network."""
    if not isinstance(model, EquilibriumModel):
        return 0.0
    return (model.deq.eval_solver or model.deq.solver).finest


def hex_of(colour: Sequence[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
