"""Descriptions of signals that `equilibria encode` and `decode` print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def what(field: Any) -> str:
    """Describe a field, as in "an image of 64 x 64 x 1"."""
    if field.kind == "shape":
        return "a shape"
    if field.kind == "sound":
        channels = "" if field.channels == 1 else f" in {field.channels} channels"
        length = field.shape[0] / field.rate
        return f"a sound of {length:.3g} s at {field.rate:,.0f} Hz{channels}"
    size = " x ".join(map(str, (*field.shape, field.channels)))
    return f"{'an' if field.kind == 'image' else 'a'} {field.kind} of {size}"


def quality(found: Mapping[str, float]) -> str:
    """Format a PSNR or an IoU."""
    if "iou" in found:
        return f"IoU {100 * found['iou']:.2f} % near the surface"
    return f"PSNR {found['psnr']:.2f} dB"
