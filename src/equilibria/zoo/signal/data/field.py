"""What a grid of samples means: where they are in [-1, 1], what their values are, how often."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

# --- points ---------------------------------------------------------------------------------------

# Coordinates of a grid, made a part at a time: a picture of any size needs no list of all.


@dataclass(frozen=True)
class Points:
    """The points of a grid, in row-major order.

    Attributes:
        axes: Coordinates along each axis, float64, ``(count,)`` each.
        dtype: Of the points that are given out.
    """

    axes: tuple[Tensor, ...] = field(repr=False)
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis."""
        return tuple(len(axis) for axis in self.axes)

    def __len__(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """Coordinates of the points at some places of the row-major order, ``(count, axes)``.

        Args:
            index: A slice, or places from 0 to ``len(self) - 1``, ``(count,)``.

        Raises:
            IndexError: If a place is outside.
        """
        if isinstance(index, slice):
            places = torch.arange(*index.indices(len(self)))
        else:
            places = index.to("cpu", torch.int64)
            if len(places) and not 0 <= int(places.min()) <= int(places.max()) < len(self):
                raise IndexError(
                    f"places {int(places.min())} to {int(places.max())} of {len(self)} points: "
                    f"expected 0 to {len(self) - 1}"
                )
        parts = torch.unravel_index(places, self.shape)
        columns = [axis[part] for axis, part in zip(self.axes, parts, strict=True)]
        return torch.stack(columns, 1).to(self.dtype)

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Go through all points, `size` at a time; the last chunk may be smaller.

        Raises:
            ValueError: If `size` is below one.
        """
        if size < 1:
            raise ValueError(f"a chunk of {size} points: give a size of at least 1")
        for start in range(0, len(self), size):
            yield self[start : start + size]


# --- field ----------------------------------------------------------------------------------------


AXES = {"sound": ("time",), "image": ("row", "column"), "film": ("frame", "row", "column")}
"""Kinds of signals on a grid, and their axes."""

CHANNELS = {"sound": (1, 64), "image": (1, 4), "film": (1, 4)}
"""Fewest and most channels of each kind."""

LARGEST = 1 << 31
"""Samples of a grid, at most."""

Box = tuple[float, float, float, float]
"""Top, left, height and width of a part of a picture, in its pixels."""


@dataclass(frozen=True, kw_only=True)
class SignalField:
    """A sound, an image or a film without its values: all that decoding has to know.

    The coordinate of sample i of n is -1 + 2 i / (n - 1): the first and the last sample of each
    axis are at -1 and 1, as in the code released with the paper. Axes come in the order of the
    grid: time; row, column; frame, row, column. Values v of the file become

        y = 2 (v - low) / (high - low) - 1

    with one range for all channels.

    A pixel covers an area, so a picture at another size has its new pixels where resizing would
    put them: pixel j of m is centred at (j + 1/2) n / m - 1/2 of the old ones, in the same frame.
    Centres beyond those of the outermost pixels are moved onto them: the field is not asked where
    it was never fitted. Time is a point: sample k at another rate is at k / rate seconds.

    Attributes:
        kind: ``"sound"``, ``"image"`` or ``"film"``.
        shape: Samples along each axis, 2 or more.
        channels: Values of a sample.
        low, high: Values of the file that become -1 and 1.
        rate: Samples or frames per second; None where it is not known.
        bits: Of a value in the file; None where it was none.

    Raises:
        ValueError: If any of these is impossible.

    papers: Huang, Bai and Kolter 2021, (Implicit)^2; Bai 2022, sec. 8.3.
    """

    kind: str
    shape: tuple[int, ...]
    channels: int
    low: float
    high: float
    rate: float | None = None
    bits: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in AXES:
            raise ValueError(f"kind is {self.kind!r}: expected one of {', '.join(AXES)}")
        axes = AXES[self.kind]
        if len(self.shape) != len(axes) or any(not _whole(n) or n < 2 for n in self.shape):
            raise ValueError(
                f"shape is {list(self.shape)}: expected {len(axes)} numbers of samples, 2 or more, "
                f"along {', '.join(axes)}"
            )
        if math.prod(self.shape) > LARGEST:
            raise ValueError(f"shape is {list(self.shape)}: expected at most {LARGEST:,} samples")
        fewest, most = CHANNELS[self.kind]
        if not _whole(self.channels) or not fewest <= self.channels <= most:
            raise ValueError(f"channels is {self.channels}: expected {fewest} to {most}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low is {self.low} and high is {self.high}: expected low < high")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"rate is {self.rate}: expected a positive number")
        if self.kind == "sound" and self.rate is None:
            raise ValueError("rate is None: a sound has samples per second")

    # --- values ------------------------------------------------------------------------------

    @property
    def inputs(self) -> int:
        """Coordinates of a point."""
        return len(self.shape)

    @property
    def outputs(self) -> int:
        """Values of a point."""
        return self.channels

    def normalize(self, values: Tensor) -> Tensor:
        """Values of the file as those in [-1, 1], float32."""
        found = values.to(torch.float64, copy=True)  # once: a film is large
        return found.sub_(self.low).mul_(2).div_(self.high - self.low).sub_(1).float()

    def restore(self, values: Tensor) -> Tensor:
        """Values in [-1, 1] as those of the file, float64, neither rounded nor cut."""
        return (values.double() + 1) / 2 * (self.high - self.low) + self.low

    # --- coordinates -------------------------------------------------------------------------

    def points(
        self, size: Sequence[int] | None = None, box: Box | None = None, time: Tensor | None = None
    ) -> Points:
        """The points at which the field is looked at; without arguments those of its samples.

        Args:
            size: Height and width of images and frames in pixels; None for one pixel for each of
                the part that is shown.
            box: The part of images and frames that is shown; None for the whole.
            time: Where on the time axis of a sound or film, in samples or frames from 0 to the
                last, fractions included, ``(count,)``; None for all. See `ticks` and `steps`.

        Raises:
            ValueError: If the signal has no such axis, or a number is outside of it.
        """
        if self.kind == "sound" and not (size is None and box is None):
            raise ValueError("size and box are for images and films: a sound has a time")
        if self.kind == "image" and time is not None:
            raise ValueError("time is for sounds and films: an image has none")
        places = list[Tensor]()
        if self.kind != "image":
            places.append(self._time(time))
        if self.kind != "sound":
            places += self._areas(size, box)
        ends = [n - 1 for n in self.shape]
        return Points(tuple(2 * p / n - 1 for p, n in zip(places, ends, strict=True)))

    def ticks(self, rate: float, start: float = 0.0, stop: float | None = None) -> Tensor:
        """Where a sound or film is sampled at another rate, for `points`.

        Args:
            rate: Samples or frames per second.
            start: First time in seconds.
            stop: Time before which they end; None for the end of the signal.

        Returns:
            ``(count,)`` in samples, of which the first has been recorded at 0 seconds.

        Raises:
            ValueError: If the signal has no rate, or there is no such time.
        """
        if self.rate is None:
            raise ValueError("this signal has no rate: name frames, not seconds")
        if not 0 < rate < math.inf:
            raise ValueError(f"rate is {rate}: expected a positive number")
        end = (self.shape[0] - 1) / self.rate
        last = self.shape[0] / self.rate if stop is None else stop
        if not 0 <= start < last <= self.shape[0] / self.rate:
            raise ValueError(
                f"from {start:g} to {last:g} s: expected a part of 0 to "
                f"{self.shape[0] / self.rate:g} s"
            )
        count = math.ceil((last - start) * rate - 1e-6)
        seconds = start + torch.arange(count, dtype=torch.float64) / rate
        # Past the last sample nothing is known: a higher rate ends there.
        seconds = seconds[seconds <= end * (1 + 1e-12)]
        if not len(seconds):
            raise ValueError(f"there is no sample between {start:g} and {last:g} s")
        return (seconds * self.rate).clamp(max=self.shape[0] - 1)

    def steps(self, start: float = 0.0, stop: float | None = None, step: float = 1.0) -> Tensor:
        """Frames or samples from `start` to below `stop`, such as 10, 10.5, 11, for `points`.

        Raises:
            ValueError: If one is not from 0 to the last, or `step` is not positive.
        """
        end = self.shape[0]
        stop = end if stop is None else stop
        if not 0 < step < math.inf or not 0 <= start < stop <= end:
            raise ValueError(
                f"{start:g} to {stop:g} by {step:g}: expected a part of 0 to {end} and a positive "
                "step"
            )
        count = math.ceil((stop - start) / step - 1e-9)
        places = start + step * torch.arange(count, dtype=torch.float64)
        return places[places <= end - 1]

    def _time(self, time: Tensor | None) -> Tensor:
        count = self.shape[0]
        if time is None:
            return torch.arange(count, dtype=torch.float64)
        time = time.to("cpu", torch.float64)
        if time.ndim != 1 or not len(time) or not bool(((time >= 0) & (time <= count - 1)).all()):
            raise ValueError(f"time is outside of the signal: expected 0 to {count - 1}, 1 or more")
        return time

    def _areas(self, size: Sequence[int] | None, box: Box | None) -> list[Tensor]:
        height, width = self.shape[-2:]
        top, left, high, wide = box or (0, 0, height, width)
        inside = top >= 0 and left >= 0 and high > 0 and wide > 0
        if not inside or top + high > height or left + wide > width:
            raise ValueError(
                f"a box of {high:g} x {wide:g} pixels at {top:g}, {left:g}: expected a part of "
                f"{height} x {width}"
            )
        size = (max(1, round(high)), max(1, round(wide))) if size is None else size
        if len(size) != 2 or any(not _whole(n) or n < 1 for n in size):
            raise ValueError(f"size is {list(size)}: expected a height and a width in pixels")
        return [
            _centres(size[0], top, high).clamp(0, height - 1),
            _centres(size[1], left, wide).clamp(0, width - 1),
        ]

    # --- as JSON -----------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The field as plain numbers and words, for a file."""
        return {**asdict(self), "shape": list(self.shape)}


def _centres(count: int, start: float, length: float) -> Tensor:
    """Centres of `count` equal parts of a stretch, in pixels whose first centre is 0."""
    return start + (torch.arange(count, dtype=torch.float64) + 0.5) * (length / count) - 0.5


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
