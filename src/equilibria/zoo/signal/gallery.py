"""A signal beside what its network makes of it, and where its equilibrium is found late."""

# Annotations are evaluated here: where they are postponed, a TypedDict knows no NotRequired.
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

import torch
from torch import Tensor

from equilibria.run.gallery.kind import GalleryKind, Hanging, PictureRecord, Settling, Stored
from equilibria.run.models import EquilibriumModel, Model
from equilibria.run.pictures import image_png, size_to_look_at
from equilibria.solve import Status
from equilibria.words import percent
from equilibria.zoo.signal.data import Points
from equilibria.zoo.signal.task.grid import GridTask
from equilibria.zoo.signal.task.shape import ShapeTask

_FRAMES = 3
"""Frames of a film that are shown."""

_SIDE = 120
"""Pixels of a side of a section through a shape."""

_BLACK = 0.1
"""Share of the range from black to white that an error has where the map of errors is black."""


class _Part(PictureRecord):
    name: str


class _WrongPart(_Part):
    wrong: float


class _CoarsePart(_Part):
    error: float


class _Signal(Stored):
    signal: Literal["image", "film", "shape"]
    black: NotRequired[float]
    constant: NotRequired[bool]
    pictures: list[_WrongPart | _CoarsePart]


def _hang(
    task: GridTask | ShapeTask, model: Model, batch: int
) -> tuple[Hanging, dict[str, Any]] | None:
    """Draw an image, some frames of a film, or sections through a shape; None of a sound.

    Beside what every gallery tells there are `signal`, which of these it is, `black`, the error
    that is black, and `constant`, whether the mean has been taken from the original.
    """
    hanging = Hanging()
    if isinstance(task, ShapeTask):
        for axis, name in enumerate("xyz"):
            _section(hanging, task, model, axis, name, batch)
        about = {"signal": "shape", "black": _BLACK, "constant": False}
        return hanging, {"count": 3, "seen": 3, **about}
    signal = task.signal
    if signal.field.kind == "sound" or signal.field.channels not in (1, 3):
        return None
    # Of an image one picture, of a film some, evenly.
    pictures = signal.values if signal.field.kind == "film" else signal.values[None]
    count = min(_FRAMES, len(pictures))
    size = pictures[0, ..., 0].numel()
    for number in range(count):
        place = (2 * number + 1) * len(pictures) // (2 * count)
        rows = torch.arange(place * size, (place + 1) * size)
        target = pictures[place]
        output, settled = _evaluate(model, signal.points, rows, batch, target.shape[:2])
        found = output.reshape(target.shape)
        if task.fit == "gradient":
            found = found + (target - found).mean((0, 1))
        name = signal.name if len(pictures) == 1 else f"frame {place}"
        error = (found.clamp(-1, 1) - target).abs().mean(2) / 2
        about = {"name": name, "error": float(error.square().mean().sqrt())}
        _add(hanging, about, settled, target / 2 + 0.5, found / 2 + 0.5, error)
    about = {"signal": signal.field.kind, "black": _BLACK, "constant": task.fit == "gradient"}
    return hanging, {"count": len(pictures), "seen": count, **about}


def _section(
    hanging: Hanging, task: ShapeTask, model: Model, axis: int, name: str, batch: int
) -> None:
    """Add the section at 0 of an axis; the first of the other two points down."""
    line, middle = torch.linspace(-1, 1, _SIDE).double(), torch.zeros(1).double()
    axes = [line, line, line]
    axes[axis] = middle
    points = Points((axes[0], axes[1], axes[2]))
    places = torch.arange(len(points))
    output, settled = _evaluate(model, points, places, batch, (_SIDE, _SIDE))
    truth = task.signal.inside(points[:]).float().reshape(_SIDE, _SIDE, 1)
    predicted = output.sigmoid().reshape(_SIDE, _SIDE, 1)
    error = ((predicted > 0.5).float() - truth).abs()[..., 0]
    about = {"name": f"section {name} = 0", "wrong": float(error.mean())}
    _add(hanging, about, settled, truth, predicted, error)


def _add(
    hanging: Hanging,
    about: dict[str, Any],
    settled: Settling | None,
    image: Tensor,
    predicted: Tensor,
    error: Tensor,
) -> None:
    """Add a picture, with the maps of it; values from 0 to 1, (height, width, channels)."""
    size = size_to_look_at(*error.shape)
    hanging.add(
        about,
        settled,
        size,
        image=image_png(image.movedim(2, 0), size),
        told=image_png(predicted.movedim(2, 0), size),
        error=image_png(1 - (error / _BLACK).clamp(max=1)[None], size),
    )


def _evaluate(
    model: Model, points: Points, rows: Tensor, batch: int, shape: Sequence[int]
) -> tuple[Tensor, Settling | None]:
    """What a network says at some points of a picture of a shape, and how its solves ended."""
    outputs, evals, status = list[Tensor](), list[Tensor](), list[Tensor]()
    for part in rows.split(batch):
        found = model(points[part])
        outputs.append(found.output.float())
        if isinstance(model, EquilibriumModel):
            evals.append(found.solution.stats.evals)
            status.append(found.solution.status)
    if not evals:
        return torch.cat(outputs), None
    # The worst of the statuses that there are speaks for all points.
    worst, after = Status(int(torch.cat(status).max())), torch.cat(evals).reshape(*shape)
    return torch.cat(outputs), Settling(after=after, evals=int(after.max()), status=worst)


def _describe(content: Mapping[str, Any]) -> str:
    if content["signal"] == "shape":
        return (
            "Sections through the middle of the shape; white is inside, and the map “error” black "
            "where the network is wrong."
        )
    what = {"image": "The image", "film": f"{content['seen']} of {content['count']} frames"}
    constant = (
        ", with the mean of the original, which its gradient leaves free" * (content["constant"])
    )
    return (
        f"{what[content['signal']]} beside what the network makes of it{constant}. The map “error” "
        f"is white where both agree and black where they are {content['black']:.0%} of the range "
        "from black to white apart, or more."
    )


def _explain_map(content: Mapping[str, Any]) -> str:
    return (
        "The map “settled after” shows where the solve converges late: each point is a sample "
        "with a solve of its own, and has the number of evaluations that this took, to a "
        f"relative residual of {content['rtol']:g}. Bright points converge last."
    )


def _note(picture: Mapping[str, Any]) -> list[str]:
    if "wrong" in picture:
        return [f"{percent(picture['wrong'])} of the points wrong"]
    return [f"root mean square error {picture['error']:.2%} of the range"]


GALLERY = GalleryKind(
    hang=_hang,
    shape=_Signal,
    describe=_describe,
    note=_note,
    explain_map=_explain_map,
    heads={
        "image": "original",
        "told": "reconstruction",
        "late": "settled after",
        "error": "error",
    },
    many_solves=True,
)
