"""What the tasks on signals share: the model's config, and what a run folder keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypedDict

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.metric import Metric, Sums
from equilibria.run.models import ModelConfig
from equilibria.run.tasks.base import Task
from equilibria.zoo.io.tasks import complete_config, read_facts, write_facts
from equilibria.zoo.signal.data import ShapeField, SignalField, field_of
from equilibria.zoo.signal.data.signal import decibels
from equilibria.zoo.signal.model.configs import LayeredConfig, RepresentationConfig, SineConfig

SIGNAL = "signal.json"
"""The file of a run folder that says what the network's coordinates and values mean."""

PITCH = 3_600.0
"""Scale for a second of sound: the released recipe takes 25,000 for 7 s."""

SOLID = 32.0
"""Scale for a shape."""


def suggest_scale(
    field: SignalField | ShapeField, *, sines: bool = False, held_out: bool = False
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
        assert field.rate is not None  # as `SignalField` has checked
        scale = PITCH * field.shape[0] / field.rate
    else:
        scale = float(max(field.shape[-2:])) / (4 if held_out else 1)
    return scale / 2 if sines else scale


class _Stored(TypedDict):
    name: str
    field: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a run folder keeps of the signal, so that its network can be decoded without it.

    Attributes:
        name: of the signal.
        field: what the network's coordinates and values mean.
    """

    name: str
    field: SignalField | ShapeField

    def save(self, folder: Path) -> None:
        """Write signal.json into a run folder."""
        content = {"name": self.name, "field": self.field.as_dict()}
        write_facts(folder / SIGNAL, content)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from a run folder.

        Raises:
            DataError: there is none, or it is damaged.
        """
        with read_facts(folder / SIGNAL, _Stored) as content:
            return cls(name=content["name"], field=field_of(content["field"]))


class SignalTask(Task):
    """What tasks on signals share.

    Attributes:
        signal: what is learned, a `Signal` or a `Shape`.
        held_out: whether pixels between those learned are what matters.
    """

    unit = "points"
    gallery = "signal"
    signal: Any
    held_out: bool = False

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        """Return the config of a network of coordinates with what the signal says filled in.

        Raises:
            ValueError: it is of no such network, or of one for another signal.
        """
        if not isinstance(config, RepresentationConfig):
            raise ValueError(
                f"{type(config).__name__} describes no network of coordinates: take imfn, isiren, "
                "mfn, siren-injected or siren"
            )
        field = self.signal.field
        facts: dict[str, Any] = {"inputs": field.inputs, "outputs": field.outputs}
        config = complete_config(config, facts, self.signal.name)
        if isinstance(config, LayeredConfig) and config.scale is None:
            sines = isinstance(config, SineConfig)
            facts["scale"] = suggest_scale(field, sines=sines, held_out=self.held_out)
        return replace(config, **facts)

    @override
    def save(self, folder: Path) -> None:
        """Write signal.json: what coordinates and values mean."""
        Described(name=self.signal.name, field=self.signal.field).save(folder)


# --- measures -------------------------------------------------------------------------------------

# Figures of signals: peak signal-to-noise ratio, and intersection over union.


def psnr(peak: float, description: str) -> Metric:
    """Return the metric PSNR of the sums that `errors` gives.

    Args:
        peak: in the units of the network's values.
        description: ends its sentence in the report.
    """

    def figure(sums: Sums) -> float:
        squares, counts = sums["squares"].tolist(), sums["counts"].tolist()
        each = [decibels(s / n, peak) for s, n in zip(squares, counts, strict=True) if n]
        return sum(each) / len(each) if each else math.nan

    return _psnr(figure, description)


def psnr_up_to_constant(peak: float) -> Metric:
    """Return the metric PSNR, after the best constant was added, of the sums of `deviations`."""

    def figure(sums: Sums) -> float:
        count = float(sums["count"])
        if not count:
            return math.nan
        mean = sums["difference"] / count
        return decibels(float((sums["square"] / count - mean.square()).mean()), peak)

    return _psnr(figure, ", after the constant that a gradient leaves free has been added.")


def _psnr(figure: Callable[[Sums], float], description: str) -> Metric:
    ratio = "The peak signal-to-noise ratio, 10 log10(peak^2 / mean squared error)"
    return Metric(
        name="psnr",
        figure=figure,
        label="PSNR",
        description=f"{ratio}{description}",
        higher_is_better=True,
        spec=".2f",
        unit=" dB",
    )


def errors(
    found: Tensor, target: Tensor, group: Tensor, groups: int, clip: bool
) -> dict[str, Tensor]:
    """Return the squared errors and their numbers by group, such as the frames of a film.

    Args:
        found: reconstruction, (points, channels).
        target: likewise.
        group: of each point, int64, (points,).
        groups: how many there are.
        clip: cut the reconstruction to [-1, 1] first.
    """
    values = found.double().clamp(-1, 1) if clip else found.double()
    each = (values - target.double()).square().sum(1)
    squares = each.new_zeros(groups).index_add_(0, group, each)
    counts = torch.bincount(group, minlength=groups) * found.shape[1]
    return {"squares": squares, "counts": counts}


def deviations(found: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Return the sums of differences and of their squares by channel, and the number of points."""
    apart = found.double() - target.double()
    count = torch.tensor(len(apart))
    return {"difference": apart.sum(0), "square": apart.square().sum(0), "count": count}


def inside(logits: Tensor, target: Tensor, near: Tensor) -> dict[str, Tensor]:
    """Return how many points both sets have, and how many either has, near the surface and not.

    Args:
        logits: above 0 for what is taken to be inside, (points, 1).
        target: whether it is, bool, (points,).
        near: whether a point was drawn near the surface, bool, (points,).
    """
    predicted = logits[:, 0] > 0
    both, either = predicted & target, predicted | target
    return {
        "near_both": (both & near).sum(),
        "near_either": (either & near).sum(),
        "cube_both": (both & ~near).sum(),
        "cube_either": (either & ~near).sum(),
    }


def _iou(name: str, kind: str, label: str, description: str) -> Metric:
    """Return the metric intersection over union of the sums that `inside` gives of a kind."""

    def figure(sums: Sums) -> float:
        either = int(sums[f"{kind}_either"])
        return int(sums[f"{kind}_both"]) / either if either else 1.0

    return Metric(
        name=name,
        figure=figure,
        label=label,
        description=description,
        higher_is_better=True,
        scale=100.0,
        spec=".2f",
        unit=" %",
    )


SURFACE_IOU = _iou(
    "iou",
    "near",
    "IoU near the surface",
    "Intersection over union of the shape and of what is taken for it, on points near the surface, "
    "where fine detail shows.",
)
"""Intersection over union on points near the surface."""

CUBE_IOU = _iou(
    "iou_cube", "cube", "IoU in the cube", "The same on points that are drawn evenly from the cube."
)
"""Intersection over union on points of the whole cube."""
