"""Scenes of flat layers, drawn at random: what each shows, its outline, and how it moves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from equilibria.checks import check_fields

HARMONICS = (2, 3, 4)
"""The outline of a shape is a circle whose radius varies so many times around."""

_AMPLITUDE = 0.32
"""By how much the m-th harmonic changes the radius, at most, times 2 / m and in each of sine and
cosine. All together take away less than half of it."""

_GRAY = 110
"""The brightness that another contrast leaves as it is, of 255."""

CANDIDATES = 6
"""Parts of photographs from which each layer's is chosen."""

_NUMBERS = 17 + 2 * len(HARMONICS) + 3 * CANDIDATES


@dataclass(frozen=True, kw_only=True)
class Motion:
    """How layers move from the first image to the second.

    Each moves by itself: ``x' = c + t + s R (x - c)``, about its middle c.

    Args:
        shift: mean length of the translation t, in pixels; its direction is uniform, and its parts
            are normal.
        turn: largest angle of the rotation R, in degrees; uniform, both ways.
        zoom: largest change of scale: the logarithm of s is uniform within those of
            1 / (1 + zoom) and 1 + zoom.
        shapes: fewest and most shapes in front of the background.
    """

    shift: float = 7.0
    turn: float = 6.0
    zoom: float = 0.08
    shapes: tuple[int, int] = (3, 6)

    def __post_init__(self) -> None:
        check_fields(self, "[0, inf)", "shift")
        check_fields(self, "[0, 180]", "turn")
        check_fields(self, "[0, 1]", "zoom")
        if len(self.shapes) != 2 or not 0 <= self.shapes[0] <= self.shapes[1] <= 20:
            raise ValueError(
                "shapes must be the fewest and the most shapes of an image, within 0 and 20; got "
                f"{list(self.shapes)}"
            )


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """Layers of some scenes, the background first and what is in front of it after it.

    Maps are affine: ``(..., 2, 3)``, applied to (x, y, 1), with (0, 0) the middle of the first
    pixel. All arrays are float64 but `photograph`.

    Attributes:
        there: whether a scene has that layer, bool, ``(scenes, layers)``.
        photograph: which photograph each shows, int64, ``(scenes, layers)``.
        texture: from places in the first image to those in the photograph.
        color: factors of red, green and blue, and what is added, ``(scenes, layers, 2, 3)``.
        local: from places in the first image to those in which the outline is near the unit circle.
        outline: cosine and sine parts of each harmonic, ``(scenes, layers, harmonics, 2)``.
        forward: from places in the first image to those in the second.
        backward: from places in the second image to those in the first.
    """

    there: np.ndarray
    photograph: np.ndarray
    texture: np.ndarray
    color: np.ndarray
    local: np.ndarray
    outline: np.ndarray
    forward: np.ndarray
    backward: np.ndarray


_CELL = 8
"""Pixels of the side of a cell, of which the details of a photograph are summed."""

_ENOUGH = 5.0
"""Levels, of 255, by which pixels differ from their neighbours, on average, where details are."""


@dataclass(frozen=True)
class PhotographDetail:
    """What is known of a photograph when scenes are drawn.

    Attributes:
        size: Height and width.
        sums: Of differences between neighbours, over all cells of 8 x 8 pixels above and to the
            left, int64, ``(1 + rows, 1 + columns)``.
    """

    size: tuple[int, int]
    sums: np.ndarray

    @classmethod
    def of(cls, photograph: np.ndarray) -> PhotographDetail:
        """Measure a photograph, uint8, ``(3, height, width)``."""
        height, width = photograph.shape[1:]
        gray = photograph.sum(0, dtype=np.int64)  # three times the level
        gray = np.pad(gray, ((0, -height % _CELL + 1), (0, -width % _CELL + 1)), mode="edge")
        change = abs(np.diff(gray, axis=0))[:, :-1] + abs(np.diff(gray, axis=1))[:-1]
        rows, columns = (length // _CELL for length in change.shape)
        cells = change.reshape(rows, _CELL, columns, _CELL).sum((1, 3))
        return cls((height, width), np.pad(cells.cumsum(0).cumsum(1), ((1, 0), (1, 0))))

    def details(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """By how many levels neighbours differ within boxes, on average, ``(count,)``.

        Args:
            low: Left and upper edge of each, in pixels, ``(count, 2)``.
            high: Right and lower edge, ``(count, 2)``.
        """
        most = np.array(self.sums.shape[::-1]) - 1
        left, top = np.clip(np.floor(low / _CELL).astype(np.int64), 0, most - 1).T
        right, bottom = np.clip(np.ceil(high / _CELL).astype(np.int64), 1, most).T
        right, bottom = np.maximum(right, left + 1), np.maximum(bottom, top + 1)
        sums = self.sums
        total = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        return total / (3 * _CELL**2 * (right - left) * (bottom - top))


def _choose_parts(
    drawn: np.ndarray, spans: np.ndarray, scale: np.ndarray, surfaces: Sequence[PhotographDetail]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each layer, the first of some parts of photographs with enough details, or the one that
    has most.

    Args:
        drawn: Numbers in [0, 1): which photograph, and where in it across and down, ``(3,
            candidates, scenes, layers)``.
        spans: Width and height of what each layer shows, in pixels of the image.
        scale: Pixels of the photograph in one of the image, fewer where it is too small.
        surfaces: Of each photograph.

    Returns:
        Which photograph, the middle of the part, and the scale, ``(scenes, layers, ...)``.
    """
    which, *place = drawn
    number = np.floor(which * len(surfaces)).astype(np.int64)
    sizes = np.array([surface.size[::-1] for surface in surfaces], np.float64)
    available = sizes[number] - 1
    scales = np.minimum(scale, (available / spans).min(-1))
    half = scales[..., None] * spans / 2
    there = available / 2 + (np.stack(place, -1) - 0.5) * (available - 2 * half)
    details = np.empty(number.shape)
    for each in np.unique(number):
        mine = number == each
        low, high = there[mine] - half[mine], there[mine] + half[mine]
        details[mine] = surfaces[each].details(low, high)
    enough = details >= _ENOUGH
    chosen = np.where(enough.any(0), enough.argmax(0), details.argmax(0))[None]
    number, scales = (np.take_along_axis(each, chosen, 0)[0] for each in (number, scales))
    return number, np.take_along_axis(there, chosen[..., None], 0)[0], scales


def compose(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """The affine map that applies `inner`, then `outer`."""
    linear, offset = outer[..., :2], outer[..., 2:]
    found = linear @ inner
    found[..., 2:] += offset
    return found


def draw(
    seeds: Sequence[Sequence[int]],
    size: tuple[int, int],
    motion: Motion,
    surfaces: Sequence[PhotographDetail],
) -> Scenes:
    """Draw scenes, each by a seed of its own.

    Each layer shows the first of six random parts of photographs that has details, or the one that
    has most: without any, motion cannot be seen.

    Args:
        seeds: Whole numbers that decide each scene.
        size: Height and width of the images.
        motion: How layers move.
        surfaces: What is known of each photograph.
    """
    height, width = size
    fewest, most = motion.shapes
    generators = [np.random.default_rng(list(seed)) for seed in seeds]
    first = np.array([generator.random() for generator in generators])
    rest = np.stack([generator.random((1 + most, _NUMBERS)) for generator in generators])
    count = fewest + np.floor(first * (most - fewest + 1)).astype(np.int64)
    numbers = iter(np.moveaxis(rest, 2, 0))

    # The middle of each layer; the background's is that of the image.
    middle = np.stack([next(numbers) * (width - 1), next(numbers) * (height - 1)], -1)
    middle[:, 0] = (width - 1) / 2, (height - 1) / 2

    # Motion. A length of Rayleigh's distribution and a uniform direction are normal parts.
    length = np.sqrt(-2 * np.log1p(-next(numbers))) * motion.shift / math.sqrt(math.pi / 2)
    direction = 2 * math.pi * next(numbers)
    shift = np.stack([length * np.cos(direction), length * np.sin(direction)], -1)
    angle = math.radians(motion.turn) * (2 * next(numbers) - 1)
    scale = np.exp(math.log1p(motion.zoom) * (2 * next(numbers) - 1))
    forward = _about(scale[..., None, None] * _rotation(angle), middle, middle + shift)
    backward = _about(_rotation(-angle) / scale[..., None, None], middle + shift, middle)

    # Outline.
    radius = min(height, width) * (0.12 + 0.2 * next(numbers))
    aspect = np.exp(0.6 * (2 * next(numbers) - 1))  # 0.55 to 1.8
    axes = np.stack([1 / (radius * aspect), aspect / radius], -1)
    turned = axes[..., None] * _rotation(2 * math.pi * next(numbers))
    local = _about(turned, middle, np.zeros_like(middle))
    outline = np.stack(
        [
            np.stack([(2 * next(numbers) - 1) * _AMPLITUDE / m for _ in range(2)], -1)
            for m in HARMONICS
        ],
        2,
    )

    # Texture: a part of a photograph, mirrored, turned and scaled, within its edges where it fits.
    angle = math.radians(20) * (2 * next(numbers) - 1)
    cosine, sine = np.cos(angle), abs(np.sin(angle))
    around = 3 * radius * np.maximum(aspect, 1 / aspect)  # holds the shape, whatever its outline
    spans = np.stack([around, around], -1)
    spans[:, 0, 0] = (cosine * width + sine * height)[:, 0]
    spans[:, 0, 1] = (sine * width + cosine * height)[:, 0]
    scale = np.exp(0.3 * (2 * next(numbers) - 1))  # pixels of the photograph in one of the image
    draws = [(next(numbers), next(numbers), next(numbers)) for _ in range(CANDIDATES)]
    parts = np.moveaxis(np.array(draws), 1, 0)
    photograph, there, scale = _choose_parts(parts, spans, scale, surfaces)
    linear = scale[..., None, None] * _rotation(angle)
    linear[..., 0, :] *= np.where(next(numbers) < 0.5, -1.0, 1.0)[..., None]
    texture = _about(linear, middle, there)

    color = _draw_color(numbers)
    assert next(numbers, None) is None  # `_NUMBERS` is how many there are
    return Scenes(
        there=np.arange(1 + most) <= count[:, None],
        photograph=photograph,
        texture=texture,
        color=color,
        local=local,
        outline=outline,
        forward=forward,
        backward=backward,
    )


def _draw_color(numbers: Iterator[np.ndarray]) -> np.ndarray:
    """Contrast about a middle grey, brightness, and a tint, as `Scenes.color`."""
    contrast = np.exp(0.3 * (2 * next(numbers) - 1))
    brightness = 30 * (2 * next(numbers) - 1)
    tint = np.stack([np.exp(0.2 * (2 * next(numbers) - 1)) for _ in range(3)], -1)
    gain = contrast[..., None] * tint
    added = (_GRAY + brightness - _GRAY * contrast)[..., None] * tint
    return np.stack([gain, added], 2)


def _rotation(angle: np.ndarray) -> np.ndarray:
    """Rotations by some angles, ``(..., 2, 2)``."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)


def _about(linear: np.ndarray, middle: np.ndarray, image: np.ndarray) -> np.ndarray:
    """The affine maps with some linear parts that take points `middle` to points `image`."""
    offset = image[..., None] - linear @ middle[..., None]
    return np.concatenate([linear, offset], -1)
