"""How close a reconstruction is: peak signal-to-noise ratio, and intersection over union."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["decibels", "iou", "psnr"]


def psnr(found: Tensor, target: Tensor, peak: float = 2.0, clip: bool = True) -> float:
    """Peak signal-to-noise ratio in decibels,

        PSNR = 10 log10(peak^2 / mean((found - target)^2)).

    In the released code an image in [-1, 1] is first brought to [0, 1] and cut there, and the peak
    is 1: from black to white. In [-1, 1] that is a peak of 2 and cutting to [-1, 1], the defaults.
    Its sounds are not cut, have the amplitude of their file, and the peak is 1, which is half of
    the range from -1 to 1: the same relative error counts 6.02 dB less than in an image. See
    `Signal.psnr`.

    Args:
        found: The reconstruction, any shape.
        target: What it should be, the same shape.
        peak: In units of both.
        clip: Cut `found` to [-1, 1] first.

    Returns:
        Infinity where both are equal.

    Raises:
        ValueError: If the shapes differ, or `peak` is not positive.

    papers: Bai 2022, sec. 8.3; code released with Huang, Bai and Kolter 2021.
    """
    if found.shape != target.shape or not found.numel():
        raise ValueError(
            f"shapes are {tuple(found.shape)} and {tuple(target.shape)}: expected the same, and at "
            "least one value"
        )
    if not peak > 0:
        raise ValueError(f"peak is {peak}: expected a positive number")
    values = found.detach().double()
    error = (values.clamp(-1, 1) if clip else values) - target.detach().double()
    return decibels(float(error.square().mean()), peak)


def decibels(mean: float, peak: float) -> float:
    """PSNR of a mean squared error, 10 log10(peak^2 / mean); infinity where there is none."""
    return math.inf if mean <= 0 else 10 * math.log10(peak**2 / mean)


def iou(found: Tensor, target: Tensor) -> float:
    """Intersection over union of two sets of points,

        IoU = count(found and target) / count(found or target),

    1 where both are empty.

    Args:
        found: Whether each point is taken to be inside, bool, ``(count,)``; of logits, ``> 0``.
        target: Whether it is, the same shape.

    Raises:
        ValueError: If the shapes differ or one is not bool.
    """
    if found.shape != target.shape or {found.dtype, target.dtype} != {torch.bool}:
        raise ValueError(
            f"shapes are {tuple(found.shape)} and {tuple(target.shape)}, types {found.dtype} and "
            f"{target.dtype}: expected bool of one shape"
        )
    either = int((found | target).sum())
    return 1.0 if either == 0 else int((found & target).sum()) / either
