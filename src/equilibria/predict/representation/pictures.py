"""Pictures of a decoded image's derivatives, and of where it converged late."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equilibria.data.signals import Field
from equilibria.data.signals.image import png_of as png
from equilibria.data.signals.photographs import GREY
from equilibria.report.flow_colours import flow_colours

__all__ = [
    "PERCENT",
    "convergence_colours",
    "gradient_colours",
    "laplacian_colours",
    "per_pixel",
    "png",
    "scale_of",
]

PERCENT = 99.0
"""Of the sizes in a picture, the percentile that is its scale."""

UNSETTLED = (255, 0, 0)
"""What did not converge, in red."""


def per_pixel(derivative: Tensor, field: Field, order: int) -> np.ndarray:
    """A derivative of an image's grey value in levels of the file for each of its pixels.

    Of a coloured image the grey value is .299 R + .587 G + .114 B.

    Args:
        derivative: with respect to coordinates: the gradient, ``(..., channels, 2)``, or
            the Hessian, ``(..., channels, 2, 2)``.
        field: of the image.
        order: 1 or 2.

    Returns:
        For order 1 slopes downwards and to the right, ``(..., 2)``; for order 2 the Laplacian,
        ``(...)``, in levels for each pixel squared. Both float32.
    """
    steps = torch.tensor([2 / (n - 1) for n in field.shape], dtype=torch.float64)
    levels = derivative.double() * (field.high - field.low) / 2
    shares = torch.tensor(GREY if field.channels == 3 else (1 / field.channels,) * field.channels)
    if order == 1:
        return torch.einsum("...ci,c,i->...i", levels, shares.double(), steps).float().numpy()
    curved = levels.diagonal(dim1=-2, dim2=-1)
    return torch.einsum("...ci,c,i->...", curved, shares.double(), steps**2).float().numpy()


def scale_of(sizes: np.ndarray) -> float:
    """The 99th percentile of sizes, which is the scale of a picture; 1 where that is 0."""
    known = np.abs(sizes[np.isfinite(sizes)])
    found = float(np.percentile(known, PERCENT)) if known.size else 0.0
    return found or 1.0


def gradient_colours(slopes: np.ndarray, scale: float) -> np.ndarray:
    """A gradient in the colours of `report.flow_colours`: white is flat, the hue is the direction
    in which it becomes brighter.

    Args:
        slopes: downwards and to the right, ``(height, width, 2)``.
        scale: length that is saturated; what is longer is darker.

    Returns:
        uint8, ``(3, height, width)``.
    """
    return flow_colours(np.stack([slopes[..., 1], slopes[..., 0]]), scale)


def laplacian_colours(values: np.ndarray, scale: float) -> np.ndarray:
    """A Laplacian in grey: 0 is the grey in the middle, plus and minus `scale` white and black.

    Args:
        values: ``(height, width)``; what is not finite is red.
        scale: positive.

    Returns:
        uint8, ``(3, height, width)``.
    """
    known = np.isfinite(values)
    share = (np.clip(np.where(known, values, 0) / scale, -1, 1) + 1) / 2
    return _marked(share, known)


def convergence_colours(evals: np.ndarray, settled: np.ndarray) -> np.ndarray:
    """The evaluations after which each pixel had converged, from black, the fewest, to white.

    Args:
        evals: ``(height, width)``.
        settled: whether it has; where not it is red.

    Returns:
        uint8, ``(3, height, width)``.
    """
    least, most = int(evals.min()), int(evals.max())
    return _marked((evals - least) / max(1, most - least), settled)


def _marked(share: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Shares from 0 to 1 in grey, and red where they are not known."""
    grey = np.round(255 * share).astype(np.uint8)
    red = np.array(UNSETTLED, np.uint8)[:, None, None]
    return np.where(known, grey, red)
