"""Figures of signals: peak signal-to-noise ratio, and intersection over union."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from equilibria.metric import Metric, Sums
from equilibria.zoo.signal.data.measure import decibels

__all__ = ["CUBE_IOU", "SURFACE_IOU", "deviations", "errors", "fitted_psnr", "inside", "psnr"]

_PSNR = "The peak signal-to-noise ratio, 10 log10(peak^2 / mean squared error)"


def psnr(peak: float, description: str) -> Metric:
    """Return the metric PSNR of the sums that `errors` gives.

    Args:
        peak: in the units of the network's values.
        description: ends its sentence in the report.
    """

    def figure(sums: Sums) -> float:
        squares, count = sums["squares"], sums["counts"]
        each = [decibels(s / n, peak) for s, n in zip(*_plain(squares, count), strict=True) if n]
        return sum(each) / len(each) if each else math.nan

    return _metric(figure, f"{_PSNR}{description}")


def fitted_psnr(peak: float) -> Metric:
    """Return the metric PSNR, after the best constant was added, of the sums of `deviations`."""

    def figure(sums: Sums) -> float:
        count = float(sums["count"])
        if not count:
            return math.nan
        mean = sums["difference"] / count
        return decibels(float((sums["square"] / count - mean.square()).mean()), peak)

    return _metric(
        figure, f"{_PSNR}, after the constant that a gradient leaves free has been added."
    )


def _metric(figure: Callable[[Sums], float], description: str) -> Metric:
    return Metric(
        name="psnr",
        figure=figure,
        label="PSNR",
        description=description,
        higher_is_better=True,
        spec=".2f",
        unit=" dB",
    )


def _plain(*tensors: Tensor) -> list[list[float]]:
    return [each.tolist() for each in tensors]


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
    told = logits[:, 0] > 0
    both, either = told & target, told | target
    return {
        "near_both": (both & near).sum(),
        "near_either": (either & near).sum(),
        "cube_both": (both & ~near).sum(),
        "cube_either": (either & ~near).sum(),
    }


def _iou(kind: str) -> Callable[[Sums], float]:
    def figure(sums: Sums) -> float:
        either = int(sums[f"{kind}_either"])
        return int(sums[f"{kind}_both"]) / either if either else 1.0

    return figure


SURFACE_IOU = Metric(
    name="iou",
    figure=_iou("near"),
    label="IoU near the surface",
    description="Intersection over union of the shape and of what is taken for it, on points near "
    "the surface, where fine detail shows.",
    higher_is_better=True,
    scale=100.0,
    spec=".2f",
    unit=" %",
)
"""Intersection over union on points near the surface."""

CUBE_IOU = Metric(
    name="iou_cube",
    figure=_iou("cube"),
    label="IoU in the cube",
    description="The same on points that are drawn evenly from the cube.",
    higher_is_better=True,
    scale=100.0,
    spec=".2f",
    unit=" %",
)
"""Intersection over union on points of the whole cube."""
