"""A sound, an image or a film: values in [-1, 1] on the grid of a field."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from equilibria.run.data.storage import DataError
from equilibria.words import plural
from equilibria.zoo.io.decode import resize
from equilibria.zoo.signal.data.field import AXES, Points, SignalField

# --- measure --------------------------------------------------------------------------------------

# How close a reconstruction is: peak signal-to-noise ratio, and intersection over union.


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


def checksum_of(*parts: tuple[object, ...]) -> str:
    """Return ``sha256:...`` over signals: of each its name, its field, and tensors in an order."""
    total = hashlib.sha256()
    for name, field, *content in parts:
        # `Field` is what runs have recorded for a `SignalField`.
        total.update(f"{name} {str(field).removeprefix('Signal')}".encode())
        for each in cast(list[Tensor], content):
            total.update(each.contiguous().numpy().tobytes())
    return f"sha256:{total.hexdigest()}"


# --- signal ---------------------------------------------------------------------------------------


class Quarters(NamedTuple):
    """Places of an image's pixels, in the order of `Signal.targets`."""

    train: Tensor
    """Pixels of even rows and columns, ``(count,)``."""
    test: Tensor
    """Pixels of odd rows and columns, ``(count,)``."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """A sound, an image or a film, every sample of which is a target.

    Attributes:
        name: What tables and messages call it.
        field: What the grid means; see `SignalField`.
        values: float32 in [-1, 1], ``(*field.shape, channels)``.
    """

    name: str
    field: SignalField
    values: Tensor = dataclasses.field(repr=False)

    @classmethod
    def of(
        cls,
        kind: str,
        values: Tensor,
        name: str,
        *,
        low: float | None = None,
        high: float | None = None,
        rate: float | None = None,
        bits: int | None = None,
    ) -> Signal:
        """Make a signal of values as a file has them.

        Args:
            kind: ``"sound"``, ``"image"`` or ``"film"``.
            values: ``(*shape, channels)``, such as ``(height, width, 3)``.
            name: For messages too.
            low, high: Values that become -1 and 1; None for minus and plus the largest absolute
                value.
            rate: Samples or frames per second.
            bits: Of a value in the file.

        Raises:
            DataError: If the values are NaN or infinite, all the same, or outside of the range; or
                an axis has less than two samples.
            ValueError: If the shape is not that of the kind.
        """
        axes = AXES.get(kind, ())
        if axes and values.ndim != len(axes) + 1:
            raise ValueError(
                f"values of the shape {tuple(values.shape)}: expected ({', '.join(axes)}, channels)"
            )
        for axis, count in zip(axes, values.shape, strict=False):
            if count < 2:
                raise DataError(
                    f"{name} has {plural(count, 'sample' if axis == 'time' else axis)}: a signal "
                    "has at least 2 samples along each axis"
                )
        raw = values.detach().cpu()
        if not bool(raw.isfinite().all()):
            count = int((~raw.isfinite()).sum())
            raise DataError(f"{name} has {count:,} values that are NaN or infinite: replace them")
        least, most = float(raw.min()), float(raw.max())
        if least == most:
            raise DataError(
                f"{name} is constant: every value is {least:g}, so there is nothing to represent"
            )
        top = max(-least, most)
        low, high = -top if low is None else low, top if high is None else high
        if least < low or most > high:
            raise DataError(
                f"{name} has values from {least:g} to {most:g}, not {low:g} to {high:g}"
            )
        described = SignalField(
            kind=kind,
            shape=tuple(values.shape[:-1]),
            channels=values.shape[-1],
            low=low,
            high=high,
            rate=rate,
            bits=bits,
        )
        return cls(name=name, field=described, values=described.normalize(raw))

    @property
    def points(self) -> Points:
        """Coordinates of all samples."""
        return self.field.points()

    @property
    def targets(self) -> Tensor:
        """Values of all samples, in the order of `points`, ``(samples, channels)``."""
        return self.values.reshape(-1, self.field.channels)

    def psnr(self, found: Tensor) -> float:
        """PSNR of a reconstruction in decibels, as the released code computes it for each kind.

        An image is cut to [-1, 1] and the peak is from black to white. Of a film it is the mean of
        those of its frames. A sound is not cut, has the amplitude of its file, and the peak is 1,
        the largest that a WAV file of integers holds; see `psnr`.

        Args:
            found: Values in [-1, 1], ``(*field.shape, channels)`` or ``(samples, channels)``.

        Raises:
            ValueError: If there are more or fewer values.
        """
        if found.numel() != self.values.numel():
            raise ValueError(
                f"values of the shape {tuple(found.shape)}: expected {tuple(self.values.shape)}"
            )
        found = found.detach().cpu().reshape(self.values.shape)
        if self.field.kind == "sound":
            peak = 2 / (self.field.high - self.field.low)
            return psnr(found, self.values, peak=peak, clip=False)
        if self.field.kind == "film":
            each = [psnr(a, b) for a, b in zip(found, self.values, strict=True)]
            return sum(each) / len(each)
        return psnr(found, self.values)

    def quarters(self) -> Quarters:
        """A quarter of an image's pixels to train on, and another one to test on.

        Even rows and columns train, odd rows and columns test, all at the coordinates that they
        have in the whole image.

        Raises:
            ValueError: If it is no image.

        papers: Bai 2022, Table 8.1; Tancik et al. 2020.
        """
        if self.field.kind != "image":
            raise ValueError(f"{self.name} is a {self.field.kind}: quarters are of an image")
        places = torch.arange(len(self.targets)).reshape(self.field.shape)
        return Quarters(places[::2, ::2].reshape(-1), places[1::2, 1::2].reshape(-1))

    def resize(self, size: tuple[int, int]) -> Signal:
        """The image or film at another size, by means over areas; see `zoo.io.decode.resize`.

        Raises:
            ValueError: If it is a sound, or `size` has a side below 2.
        """
        if self.field.kind == "sound":
            raise ValueError(f"{self.name} is a sound: it has a rate, not a size")
        pixels = self.values.movedim(-1, -3)
        shape = (*self.field.shape[:-2], *size)
        smaller = resize(pixels.reshape(-1, *pixels.shape[-3:]), size)
        values = smaller.reshape(*shape[:-2], *smaller.shape[1:]).movedim(-3, -1)
        return replace(self, field=replace(self.field, shape=shape), values=values.contiguous())
