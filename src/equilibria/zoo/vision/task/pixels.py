"""Pixels with a class each: their loss, and what the confusion of classes amounts to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from equilibria.metric import Metric, Sums
from equilibria.zoo.vision.data.segmentation import VOID


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    weights: Tensor | None = None,
    hard: float | None = None,
    least: float = 0.0,
) -> Tensor:
    """Return the summed loss of all pixels that have a class.

    With `hard`, only pixels whose own class has a lower probability count (online hard example
    mining): the sum is scaled so that divided by all pixels it is the mean over those that count.

    Args:
        logits: (batch, classes, height, width).
        targets: classes, (batch, height, width); `VOID` where a pixel has none.
        weights: of the classes, (classes,); None for 1.
        hard: probability below which a pixel counts; None for all pixels.
        least: share of the pixels of the batch that count in any case, the hardest.

    papers: Shrivastava et al. 2016; as in the released segmentation models of Bai et al. 2020.
    """
    each = functional.cross_entropy(
        logits, targets, weight=weights, ignore_index=VOID, reduction="none"
    )
    known = targets != VOID
    if hard is None:
        return each.sum()
    losses = each[known]
    with torch.no_grad():
        own = logits.detach().movedim(1, -1)[known].log_softmax(-1)
        own = own.gather(1, targets[known][:, None])[:, 0]
        limit = torch.full((), math.log(hard), dtype=own.dtype, device=own.device)
        count = math.ceil(least * len(own))
        if 0 < count <= len(own):
            limit = torch.maximum(limit, own.kthvalue(count).values)
        counts = own <= limit
    taken = losses[counts]
    return taken.sum() * (len(losses) / max(1, len(taken)))


def weigh_classes(counts: Tensor, power: float) -> Tensor:
    """Return weights of classes w_k ~ (pixels of class k)^-power, whose mean over pixels is 1.

    Args:
        counts: pixels of each class, (classes,); a class without any has weight 0.
        power: 0 for equal weights, 0.5 for the square root, 1 for equal parts of all classes.

    Raises:
        ValueError: no class has a pixel.
    """
    if not counts.any():
        raise ValueError("all pixels to learn from are void: take images that show classes")
    shares = counts.double() / counts.sum()
    raw = torch.where(counts > 0, shares.clamp_min(1e-12) ** -power, 0.0)
    return (raw / (shares * raw).sum()).float()


def confusion(answers: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return how many pixels of class i were taken for class j, (classes, classes) int64.

    Args:
        answers: classes, of any shape.
        targets: of the same shape; pixels that are `VOID` are left out.
        classes: how many there are.
    """
    known = targets != VOID
    pairs = targets[known] * classes + answers[known]
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def agreement(answers: Tensor, targets: Tensor) -> Tensor:
    """Return how many rows have answer j where i is right, for each class: (classes, 2, 2) int64.

    Args:
        answers: bool, (rows, classes).
        targets: bool, of the same shape.
    """
    pairs = [(~targets, ~answers), (~targets, answers), (targets, ~answers), (targets, answers)]
    return torch.stack([(a & b).sum(0) for a, b in pairs], 1).view(-1, 2, 2)


def iou(matrix: Tensor) -> Tensor:
    """Return the intersection over union of each class; NaN of one that is nowhere."""
    both = matrix.diagonal().double()
    return both / (matrix.sum(0) + matrix.sum(1) - both)


def confusion_metrics(labels: Sequence[str]) -> tuple[Metric, ...]:
    """Return the metrics of a sum `confusion`: mean IoU, the primary one, to the IoU of each class.

    Args:
        labels: names of the classes.
    """

    def of_class(place: int) -> Metric:
        return Metric(
            name=f"iou_{labels[place]}",
            label=f"IoU, {labels[place]}",
            figure=lambda sums: iou(sums["confusion"])[place].item(),
            plot=False,
            **PERCENT,
        )

    return (MEAN_IOU, PIXELS, CLASSES, *map(of_class, range(len(labels))))


def _per_class(sums: Sums) -> float:
    matrix = sums["confusion"].double()
    return (matrix.diagonal() / matrix.sum(1)).nanmean().item()


def _balanced_accuracy(tables: Tensor) -> float:
    """The mean over classes that some images show and others do not, of (classes, 2, 2) counts."""
    rows = tables.sum(2).double()
    right = tables.diagonal(dim1=1, dim2=2) / rows
    return right[(rows > 0).all(1)].mean().item()


PERCENT: dict[str, Any] = {"higher_is_better": True, "scale": 100.0, "spec": ".2f", "unit": " %"}

MEAN_IOU = Metric(
    name="miou",
    label="mean IoU",
    figure=lambda sums: iou(sums["confusion"]).nanmean().item(),
    description="Intersection over union of the true and the predicted pixels of a class, over all "
    "images, void excluded, averaged over the classes.",
    **PERCENT,
)
PIXELS = Metric(
    name="pixel_accuracy",
    label="pixel accuracy",
    figure=lambda sums: (
        sums["confusion"].diagonal().sum() / sums["confusion"].sum().double()
    ).item(),
    description="The share of pixels classified correctly, void excluded.",
    **PERCENT,
)
CLASSES = Metric(
    name="class_accuracy",
    label="mean class accuracy",
    figure=_per_class,
    description="The share of a class's pixels that are found, mean over the classes.",
    plot=False,
    **PERCENT,
)
PRESENCE = Metric(
    name="presence",
    label="presence accuracy",
    figure=lambda sums: _balanced_accuracy(sums["presence"]),
    description="Whether an image shows a class: the mean of the shares of images with and without "
    "it that are told right, over classes that some images show and others do not. Guessing: 50 %.",
    **PERCENT,
)
