"""Optical flow in colours: hue is the direction, saturation the length."""

from __future__ import annotations

import functools
import io
import math

import numpy as np

_SEGMENTS: tuple[tuple[list[int], list[int], int], ...] = (
    # From which colour to which, in how many steps: perceptually alike steps need unlike numbers.
    ([255, 0, 0], [255, 255, 0], 15),
    ([255, 255, 0], [0, 255, 0], 6),
    ([0, 255, 0], [0, 255, 255], 4),
    ([0, 255, 255], [0, 0, 255], 11),
    ([0, 0, 255], [255, 0, 255], 13),
    ([255, 0, 255], [255, 0, 0], 6),
)

FLOOR = 1.0
"""Pixels: no scale of colours that is chosen by the flow is smaller."""

_BEYOND = 0.75
"""Brightness of a flow that is longer than the scale."""

_SMALLEST, _LARGEST, _BINS = 1e-3, 1e5, 4096
"""Of the histogram of lengths, in pixels: a bin is .5 % wide."""


@functools.cache
def _wheel() -> np.ndarray:
    """The 55 colours of the wheel, (55, 3) from 0 to 1."""
    parts = [np.linspace(start, end, steps, endpoint=False) for start, end, steps in _SEGMENTS]
    return np.floor(np.concatenate(parts)) / 255


def flow_colors(flow: np.ndarray, scale: float, valid: np.ndarray | None = None) -> np.ndarray:
    """Return a flow in the colours of the Middlebury wheel.

    White does not move; a flow as long as the scale is saturated, and a longer one darker. To the
    right is red, downwards yellow, to the left cyan and upwards violet.

    Args:
        flow: (2, height, width) in pixels, to the right and downwards.
        scale: length in pixels that is saturated.
        valid: (height, width); where not, and where the flow is not finite, pixels are black.

    Returns:
        uint8, (3, height, width).

    Raises:
        ValueError: another shape, or a scale that is not a positive number.

    papers: Baker et al. 2011, sec. 4.1 (colour coding).
    """
    if flow.ndim != 3 or flow.shape[0] != 2:
        raise ValueError(f"expected a flow (2, height, width), got {flow.shape}")
    if not 0 < scale < math.inf:
        raise ValueError(f"the scale must be a positive number of pixels; got {scale}")
    known = np.isfinite(flow).all(0)
    if valid is not None:
        known &= valid
    u, v = np.where(known, flow, 0).astype(np.float64) / scale
    length = np.hypot(u, v)[..., None]
    wheel = _wheel()
    # The last colour is one step before the first, and nothing lies between the two.
    place = (np.arctan2(-v, -u) / math.pi + 1) / 2 * (len(wheel) - 1)
    below = np.minimum(place.astype(int), len(wheel) - 2)
    part = (place - below)[..., None]
    hue = (1 - part) * wheel[below] + part * wheel[below + 1]
    color = np.where(length <= 1, 1 - length * (1 - hue), hue * _BEYOND)
    color[~known] = 0
    # Rounding must not take a whole number to the one below.
    return np.floor(255 * color + 1e-6).astype(np.uint8).transpose(2, 0, 1)


def change_colors(change: np.ndarray, low: float = 1e-3, high: float = 10.0) -> np.ndarray:
    """Return a map of lengths on a logarithmic scale from black (still) to white.

    Args:
        change: (height, width), how many pixels the flow of each pixel still moves.
        low: pixels that are black, and all below.
        high: pixels that are white; what is above, or not finite, is red.

    Returns:
        uint8, (3, height, width).
    """
    known = np.isfinite(change)
    share = np.log(np.clip(np.where(known, change, high), low, high) / low) / math.log(high / low)
    gray = np.round(255 * share).astype(np.uint8)
    over = ~known | (change > high)
    red = np.array([255, 0, 0], np.uint8)[:, None, None]
    return np.where(over, red, gray)


def legend(scale: float, size: int = 161) -> np.ndarray:
    """Return the wheel itself: the flow from its middle to each of its pixels.

    Args:
        scale: length in pixels at the rim, which is written below.
        size: height and width of the wheel in pixels.

    Returns:
        uint8, (3, size + 20, size).
    """
    from PIL import Image, ImageDraw

    places = np.linspace(-1, 1, size)
    u, v = np.meshgrid(places, places)
    wheel = flow_colors(np.stack([u, v]), 1.0)
    wheel[:, np.hypot(u, v) > 1] = 255
    image = Image.new("RGB", (size, size + 20), "white")
    image.paste(Image.fromarray(wheel.transpose(1, 2, 0)))
    draw = ImageDraw.Draw(image)
    text = f"{scale:.3g} px"
    draw.text((size / 2 - draw.textlength(text) / 2, size + 4), text, fill="black")
    return np.array(image).transpose(2, 0, 1)


def color_png(pixels: np.ndarray) -> bytes:
    """Return pixels, uint8 (1 or 3, height, width), as a PNG file."""
    from PIL import Image

    image = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, "PNG")
    return file.getvalue()


class Lengths:
    """The distribution of the flow's length over many images, for one scale for all.

    It is a histogram of logarithms: its memory does not depend on the number of images, nor its
    result on their order.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)

    def add(self, flow: np.ndarray) -> None:
        """Count the lengths of a flow, (2, height, width), that are finite."""
        length = np.hypot(*flow.astype(np.float64))
        length = np.clip(length[np.isfinite(length)], _SMALLEST, _LARGEST)
        share = np.log(length / _SMALLEST) / math.log(_LARGEST / _SMALLEST)
        place = np.minimum((share * _BINS).astype(int), _BINS - 1)
        self._counts += np.bincount(place, minlength=_BINS)

    def percentile(self, percent: float = 99.0) -> float:
        """Return the length in pixels that so many percent of all are at most, within .5 %.

        At least `FLOOR`, so that noise around no motion is not drawn as motion.
        """
        total = self._counts.sum()
        if not total:
            return FLOOR
        place = int(np.searchsorted(self._counts.cumsum(), percent / 100 * total))
        found = _SMALLEST * (_LARGEST / _SMALLEST) ** ((min(place, _BINS - 1) + 1) / _BINS)
        return max(FLOOR, found)
