"""Descriptions of signals that `equilibria encode` and `decode` print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from equilibria.cli.output import Output
from equilibria.data.signals.shape import NOISE
from equilibria.words import percent

__all__ = ["bytes_of", "quality", "saying", "share", "what"]


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
        return (
            f"IoU {100 * found['iou']:.2f} % near the surface (noise {found.get('noise', NOISE):g})"
        )
    return f"PSNR {found['psnr']:.2f} dB"


def share(converged: float) -> str:
    """Format the fraction of solves that converged."""
    return "all converged" if converged == 1 else f"{percent(converged)} converged"


def bytes_of(count: float) -> str:
    """Format a number of bytes, rounded."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def saying(console: Output) -> Callable[[str], None]:
    """Return a function that prints a line verbatim."""
    return lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)
