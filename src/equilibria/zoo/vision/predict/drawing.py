"""Masks as palette PNG, and overlays to look at."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from equilibria.zoo.vision.model.dense_head import upsampled

__all__ = ["best_classes", "mask_png", "overlay_png"]

OPACITY = 0.5
"""Of the colours of classes over an image."""


def best_classes(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the class with the largest logit at each pixel, uint8 (height, width).

    Logits are interpolated one class at a time: an image may be far larger than what the network
    has seen of it.

    Args:
        logits: of one image, (classes, h, w).
        size: height and width of the image.
    """
    best = upsampled(logits[None, :1], size)[0, 0]
    answer = torch.zeros(best.shape, dtype=torch.uint8, device=logits.device)
    for number in range(1, len(logits)):
        other = upsampled(logits[None, number : number + 1], size)[0, 0]
        better = other > best
        answer[better] = number
        best = torch.where(better, other, best)
    return answer.cpu()


def mask_png(
    mask: np.ndarray, colours: Sequence[Sequence[int]], values: Sequence[int] = ()
) -> bytes:
    """Return a mask as a PNG whose palette has the colours of classes.

    Args:
        mask: classes, uint8 (height, width).
        colours: red, green and blue of each class.
        values: what the file holds for each class; empty for 0, 1, ...
    """
    from PIL import Image

    values = values or range(len(colours))
    table = np.zeros(256, np.uint8)
    table[: len(values)] = values
    palette = np.zeros((max(values) + 1, 3), np.uint8)
    palette[list(values)] = colours
    found = Image.fromarray(table[mask])
    found.putpalette(palette.tobytes())
    return _png(found)


def overlay_png(image: np.ndarray, mask: np.ndarray, colours: Sequence[Sequence[int]]) -> bytes:
    """Return an image, uint8 (3, height, width), under the colours of its mask, as PNG."""
    from PIL import Image

    table = np.array(colours, np.float32)
    mixed = (1 - OPACITY) * image.transpose(1, 2, 0) + OPACITY * table[mask]
    return _png(Image.fromarray(mixed.round().astype(np.uint8)))


def _png(image: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")  # type: ignore[attr-defined]
    return file.getvalue()
