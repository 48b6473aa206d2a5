"""Where a signal is looked at: all of it or a part, as finely as is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from torch import Tensor

from equilibria.data.signals import Field, Points, ShapeField
from equilibria.data.signals.field import Box
from equilibria.predict.representation.file import InrError

__all__ = ["OPTIONS", "RESOLUTION", "View", "refuse_others"]

RESOLUTION = 128
"""Points along each axis of a decoded shape, unless it is said."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "size": ("image", "film"),
    "scale": ("image", "film"),
    "crop": ("image", "film"),
    "rate": ("sound",),
    "frames": ("film",),
    "fps": ("film",),
    "resolution": ("shape",),
    "gradient": ("image",),
    "laplacian": ("image",),
    "convergence": ("image",),
}
"""Options of decoding, and the kinds of signals that they are for."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class View:
    """What of a signal is decoded, and how finely; None for all of it, as it was encoded.

    Attributes:
        size: height and width in pixels.
        scale: pixels along each side for each one that there was.
        crop: top, left, height and width of a part, in pixels of the signal.
        rate: samples per second of a sound.
        frames: first frame of a film, the one before which to end, and the step, each None for the
            usual one; fractions are between frames.
        resolution: points along each axis of a shape.
    """

    size: tuple[int, int] | None = None
    scale: float | None = None
    crop: Box | None = None
    rate: float | None = None
    frames: tuple[float | None, float | None, float | None] | None = None
    resolution: int | None = None

    def points(self, field: Field | ShapeField) -> Points:
        """Return the points.

        Raises:
            InrError: an option is for another kind of signal, or there is no such part; the message
                names the option.
        """
        given = {f.name for f in fields(self) if getattr(self, f.name) is not None}
        refuse_others(given, field.kind)
        if isinstance(field, ShapeField):
            return _named("resolution", lambda: field.points(self.resolution or RESOLUTION))
        if field.kind == "sound":
            rate = self.rate
            if rate is None:
                return field.points()
            return field.points(time=_named("rate", lambda: field.ticks(rate)))
        time = None if self.frames is None else self._time(field, self.frames)
        option = "crop" if self.crop else "size"
        return _named(
            option, lambda: field.points(size=self._size(field), box=self.crop, time=time)
        )

    def _size(self, field: Field) -> tuple[int, int] | None:
        if self.size is not None and self.scale is not None:
            raise InrError("size and scale both say how large the picture is: give one of them")
        if self.scale is None:
            return self.size
        if not 0 < self.scale < math.inf:
            raise InrError(f"scale must be a positive number; got {self.scale:g}")
        height, width = field.shape[-2:] if self.crop is None else self.crop[2:]
        return max(1, round(self.scale * height)), max(1, round(self.scale * width))

    def _time(
        self, field: Field, frames: tuple[float | None, float | None, float | None]
    ) -> Tensor:
        start, stop, step = frames
        found = _named(
            "frames", lambda: field.steps(start or 0.0, stop, 1.0 if step is None else step)
        )
        if not len(found):
            raise InrError(f"--frames: {start:g} is after the last frame, {field.shape[0] - 1}")
        return found


def refuse_others(options: set[str], kind: str) -> None:
    """Refuse options that are not for a kind of signal.

    Raises:
        InrError: there is one; the message names it.
    """
    for name, kinds in OPTIONS.items():
        if name in options and kind not in kinds:
            raise InrError(
                f"--{name} is for {' and '.join(f'{each}s' for each in kinds)}, and this is "
                f"{'an' if kind == 'image' else 'a'} {kind}: leave it out"
            )


def _named(option: str, make: Callable[[], _Found]) -> _Found:
    """What is made of an option; an InrError that names it where that is impossible."""
    try:
        return make()
    except ValueError as error:
        raise InrError(f"--{option}: {error}") from None
