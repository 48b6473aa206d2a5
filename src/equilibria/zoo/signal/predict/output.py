"""Decoded signals, and pictures of an image's derivatives, as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import replace_file, require
from equilibria.zoo.io import video
from equilibria.zoo.io.colors import color_png, flow_colors
from equilibria.zoo.signal.data import (
    ShapeField,
    SignalField,
    surface,
    write_film,
    write_image,
    write_mesh,
    write_sound,
)
from equilibria.zoo.signal.data.files import pixels_of
from equilibria.zoo.signal.data.sets import GRAY
from equilibria.zoo.signal.predict.file import InrError

ENDINGS: Mapping[str, tuple[str, ...]] = {
    "image": (".png",),
    "sound": (".wav",),
    "film": (".gif", ".mp4", ""),
    "shape": (".ply",),
}
"""Endings of what each kind is decoded to, the usual one first; none is a folder of frames."""

PERCENT = 99.0
"""Of the sizes in a picture of a derivative, the percentile that is its scale."""


def check(path: Path, field: SignalField | ShapeField) -> None:
    """Refuse a file that could not be written, before anything is decoded.

    Raises:
        InrError: the ending is another, or the signal has channels that the format has not.
        DataError: a package of an extra is missing.
    """
    kind, ending = field.kind, path.suffix.lower()
    if ending not in ENDINGS[kind]:
        known = " or ".join(each or "a folder" for each in ENDINGS[kind])
        raise InrError(
            f"{'an' if kind == 'image' else 'a'} {kind} is decoded to {known}; got {path.name}"
        )
    if kind == "shape":
        require("skimage.measure", "scikit-image", "mesh", "marching cubes")
    elif kind != "sound" and field.outputs not in (1, 3):
        raise InrError(f"pictures are grey or RGB, and this {kind} has {field.outputs} channels")
    if ending == ".mp4":
        video.check_written(path)


def write(
    path: Path, values: Tensor, field: SignalField | ShapeField, rate: float | None = None
) -> None:
    """Write a decoded signal, whole or not at all; see `ENDINGS`.

    Args:
        path: of the file, or of a folder that does not exist yet.
        values: as `Decoder.decode` gives them.
        field: of the signal.
        rate: samples or frames per second; None for the signal's own, of a film without one 15.

    Raises:
        DataError: it cannot be written, a pixel is not finite, or there is no surface.
    """
    if isinstance(field, ShapeField):
        write_mesh(path, surface(values[..., 0], field))
    elif field.kind == "sound":
        write_sound(path, values, field, rate)
    elif field.kind == "image":
        write_image(path, values)
    elif path.suffix.lower() == ".mp4":
        frames = (pixels_of(each).transpose(2, 0, 1) for each in values.expand(-1, -1, -1, 3))
        video.write(path, frames, rate or field.rate or 15.0)
    else:
        write_film(path, values, rate or field.rate)


def per_pixel(derivative: Tensor, field: SignalField, order: int) -> Tensor:
    """A derivative of an image's grey value in levels of the file for each of its pixels.

    Of a coloured image the grey value is .299 R + .587 G + .114 B.

    Args:
        derivative: with respect to coordinates: the gradient, ``(..., channels, 2)``, or
            the Hessian, ``(..., channels, 2, 2)``.
        field: of the image.
        order: 1 or 2.

    Returns:
        For order 1 slopes downwards and to the right, ``(..., 2)``; for order 2 the Laplacian,
        ``(...)``, in levels for each pixel squared.
    """
    if order == 2:
        derivative = derivative.diagonal(dim1=-2, dim2=-1)
    shares = GRAY if field.channels == 3 else (1 / field.channels,) * field.channels
    steps = torch.tensor([2 / (n - 1) for n in field.shape]).to(derivative)
    gray = torch.tensor(shares).to(derivative) @ derivative
    found = (field.high - field.low) / 2 * gray * steps**order
    return found if order == 1 else found.sum(-1)


def draw(path: Path, values: Tensor) -> float:
    """Write what `per_pixel` gives as a picture, and return its scale: the 99th percentile of the
    sizes, or 1 if that is 0.

    A gradient has the colours of `zoo.io.colors`: white is flat, the hue is the direction in
    which it becomes brighter, and what is longer than the scale is darker. A Laplacian is grey:
    plus and minus the scale are white and black.

    Args:
        path: ends with .png.
        values: ``(height, width, 2)`` or ``(height, width)``.

    Raises:
        InrError: a value is not finite.
        DataError: the file cannot be written.
    """
    if not values.isfinite().all():
        raise InrError(f"{path.name} is not written: the derivative is NaN or infinite in places")
    slopes = values.ndim == 3
    sizes = values.norm(dim=-1) if slopes else values.abs()
    scale = float(np.percentile(sizes.numpy(), PERCENT)) or 1.0
    if slopes:
        replace_file(path, color_png(flow_colors(values.flip(-1).movedim(-1, 0).numpy(), scale)))
    else:
        write_image(path, values[..., None] / scale)
    return scale


# --- words ----------------------------------------------------------------------------------------

# What the commands print of a signal.


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
