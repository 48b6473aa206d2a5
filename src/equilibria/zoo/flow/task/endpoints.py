"""Errors of a flow: the loss, and the metrics of optical flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equilibria.metric import Metric, mean

_FAR = 3.0
_SHARE = 0.05
"""Pixels, and share of the true length, by which a flow that counts as an outlier is wrong."""

_PIXELS: Any = {"spec": ".3f", "unit": " px"}
_PERCENT: Any = {"scale": 100.0, "spec": ".2f", "unit": " %"}

EPE = Metric(
    name="epe",
    figure=mean("error", "pixels"),
    label="end-point error",
    description="The distance between the estimated and the true flow vector, averaged over all "
    "pixels whose flow is known.",
    **_PIXELS,
)

METRICS = (
    EPE,
    Metric(
        name="px1",
        figure=mean("within1", "pixels"),
        label="within 1 px",
        description="The share of pixels whose end-point error is below 1 pixel.",
        higher_is_better=True,
        **_PERCENT,
    ),
    Metric(
        name="px3",
        figure=mean("within3", "pixels"),
        label="within 3 px",
        description="The share of pixels whose end-point error is below 3 pixels.",
        higher_is_better=True,
        **_PERCENT,
        plot=False,
    ),
    Metric(
        name="f1",
        figure=mean("outliers", "pixels"),
        label="F1-all",
        description="The share of pixels whose end-point error is at least 3 pixels and more than "
        "5 % of their motion (KITTI's outliers).",
        **_PERCENT,
    ),
    Metric(
        name="epe_images",
        figure=mean("image_error", "images"),
        label="end-point error, mean of images",
        description="Each image has the same weight, as in published figures on KITTI.",
        **_PIXELS,
        plot=False,
    ),
)
"""The metrics of optical flow, the primary one first."""


def absolute(output: Tensor, flow: Tensor, counted: Tensor) -> Tensor:
    """Return the summed L1 loss |u - u'| + |v - v'| of the pixels that count, a scalar.

    Args:
        output: flow of a model, (batch, 2, height, width), in pixels.
        flow: the true one, of the same shape; of pixels that do not count it may be anything.
        counted: which pixels count, bool, (batch, height, width).
    """
    # Before `abs`, whose gradient at a NaN is one too.
    return torch.where(counted[:, None], output - flow, 0.0).abs().sum()


def sums(output: Tensor, flow: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Return what a batch adds to the sums of `METRICS`.

    Args:
        output: flow of a model, (batch, 2, height, width), in pixels.
        flow: the true one, of the same shape.
        valid: where it is known, bool, (batch, height, width).

    papers: F1-all as in Menze and Geiger 2015.
    """
    error = torch.where(valid, (output - flow).norm(dim=1), 0.0).double()
    pixels = valid.sum((1, 2))
    some = pixels > 0
    # An error that is no number is within nothing, and an outlier.
    near = (error < _FAR) | (error <= _SHARE * flow.norm(dim=1))
    return {
        "error": error.sum(),
        "pixels": pixels.sum(),
        "within1": ((error < 1.0) & valid).sum(),
        "within3": ((error < _FAR) & valid).sum(),
        "outliers": (valid & ~near).sum(),
        "image_error": (error.sum((1, 2))[some] / pixels[some]).sum(),
        "images": some.sum(),
    }
