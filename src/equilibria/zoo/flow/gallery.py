"""Test pairs with their optical flow, its error, and its change under one more evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from equilibria.run.gallery.kind import GalleryKind, Hanging, PictureRecord, Settling, Stored
from equilibria.run.models import Model
from equilibria.run.pictures import image_png, size_to_look_at
from equilibria.solve import Status
from equilibria.words import plural
from equilibria.zoo.flow.model import DEQFlow
from equilibria.zoo.flow.task import FlowTask
from equilibria.zoo.io.colors import Lengths, change_colors, flow_colors

_PAIRS = 4
"""Pairs that are shown."""

_PERCENT = 99.0
"""Of the lengths of the true flow of all pairs shown, the percentile that is saturated."""


class _FlowExample(PictureRecord):
    name: str
    epe: float
    zero: float


class _Pairs(Stored):
    pixels: float
    pictures: list[_FlowExample]


def _hang(task: FlowTask, model: Model, most: int) -> tuple[Hanging, dict[str, Any]]:
    """Draw some pairs of the test split, spread evenly over it, and what one more evaluation
    changes at an equilibrium; `pixels` is the length of the flow that is saturated."""
    total = len(task.pairs["test"])
    count = min(_PAIRS, total)
    places = [(2 * k + 1) * total // (2 * count) for k in range(count)]
    batches = [task.batch("test", [place]) for place in places]
    lengths = Lengths()
    for batch in batches:
        flow, valid = batch.targets
        lengths.add(torch.where(valid[:, None], flow, torch.nan)[0].numpy())
    scale = lengths.percentile(_PERCENT)
    hanging = Hanging()
    for place, batch in zip(places, batches, strict=True):
        flow, valid = (each[0] for each in batch.targets)
        found = model(batch.inputs)
        told = found.output[0]
        error = (told - flow).norm(dim=0)
        size = size_to_look_at(*error.shape)
        settled, maps = None, {}
        if isinstance(model, DEQFlow):
            solution = found.solution
            status = Status(int(solution.status[0]))
            settled = Settling(after=None, evals=int(solution.stats.evals[0]), status=status)
            moves = model.moves(solution.value, batch.inputs)[0]
            maps["moves"] = _png(change_colors(moves.numpy()), size)
        first, second = (_png(each[0].round().byte().numpy(), size) for each in batch.inputs)
        hanging.add(
            {
                "name": f"pair {place}",
                "epe": float(error[valid].mean()),
                "zero": float(flow.norm(dim=0)[valid].mean()),
            },
            settled,
            size,
            image=first,
            second=second,
            truth=_png(flow_colors(flow.numpy(), scale, valid.numpy()), size),
            told=_png(flow_colors(told.numpy(), scale), size),
            error=_png(change_colors(torch.where(valid, error, 0.0).numpy()), size),
            **maps,
        )
    return hanging, {"count": total, "seen": count, "pixels": scale}


def _png(pixels: Any, size: tuple[int, int]) -> bytes:
    return image_png(torch.from_numpy(pixels) / 255, size)


def _describe(content: Mapping[str, Any]) -> str:
    text = (
        f"{content['seen']} of {plural(content['count'], 'test pair')}, evenly spaced. The hue of "
        "a flow is its direction (red to the right, yellow down, cyan to the left, violet up), its "
        f"saturation the length; beyond {content['pixels']:.3g} pixels it is darker. The map "
        "“error” shows the distance from the true flow"
    )
    if any("moves" in picture["files"] for picture in content["pictures"]):
        text += ", and “still moves” the distance by which one more evaluation moves the flow"
    return (
        f"{text}, on a logarithmic scale from .001 pixels (black) to 10 (white); red is more. "
        "Pixels whose true flow is unknown are black."
    )


def _note(picture: Mapping[str, Any]) -> list[str]:
    return [f"error {picture['epe']:.2f} px, of zero flow {picture['zero']:.2f} px"]


GALLERY = GalleryKind(
    hang=_hang,
    shape=_Pairs,
    describe=_describe,
    note=_note,
    heads={
        "image": "image",
        "second": "next image",
        "truth": "truth",
        "told": "predicted",
        "error": "error",
        "moves": "still moves",
    },
    columns=3,
)
