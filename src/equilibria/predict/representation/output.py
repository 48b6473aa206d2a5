"""Decoded signals as files, gathered chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from equilibria.data.extras import needed
from equilibria.data.replace import replace_file, write_folder
from equilibria.data.signals import Field, Points, ShapeField, surface, write_mesh, write_sound
from equilibria.data.signals.image import pixels_of, png_of
from equilibria.predict.flow import video
from equilibria.predict.representation.decoder import Decoded
from equilibria.predict.representation.file import InrError

__all__ = ["ENDINGS", "Gathered", "check", "held_bytes"]

ENDINGS: Mapping[str, tuple[str, ...]] = {
    "image": (".png",),
    "sound": (".wav",),
    "film": (".gif", ".mp4", ""),
    "shape": (".ply",),
}
"""Endings of what each kind is decoded to, the usual one first; none is a folder of frames."""


def check(path: Path, field: Field | ShapeField) -> None:
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
    if isinstance(field, ShapeField):
        needed("skimage.measure", "scikit-image", "mesh", "marching cubes")
    elif kind != "sound" and field.channels not in (1, 3):
        raise InrError(f"pictures are grey or RGB, and this {kind} has {field.channels} channels")
    if ending == ".mp4":
        video.check_written(path)


LOUD = 0.01
"""How far above 1 a sample counts as one that is cut: a fit of a full-scale sound overshoots."""


class Gathered:
    """What is decoded at some points, chunk by chunk, as a file takes it: pixels in 8 bits.

    Args:
        points: all of them.
        field: of the signal.
        maps: keep the evaluations of each point.

    Attributes:
        count: points so far.
        converged: of these; None of an explicit network.
        evaluations: of these, all together.
        evals: of each point, int32; None unless asked for, or of an explicit network.
        settled: whether each converged; None likewise.
    """

    def __init__(self, points: Points, field: Field | ShapeField, *, maps: bool = False) -> None:
        self.points, self.field, self.maps = points, field, maps
        self.pixels = field.kind in ("image", "film")
        kind = np.uint8 if self.pixels else np.float32
        self.values = np.empty((len(points), field.outputs), kind)
        self.count, self.evaluations = 0, 0
        self.converged: int | None = None
        self.evals: np.ndarray | None = None
        self.settled: np.ndarray | None = None

    def add(self, parts: Iterable[Decoded]) -> Gathered:
        """Take all chunks, in order.

        Raises:
            DataError: a pixel is not finite.
        """
        for part in parts:
            place = slice(self.count, self.count + len(part.values))
            self.values[place] = pixels_of(part.values) if self.pixels else part.values.numpy()
            self.count = place.stop
            if part.evals is None or part.settled is None:
                continue
            self.evaluations += int(part.evals.sum())
            self.converged = (self.converged or 0) + int(part.settled.sum())
            if self.maps:
                if self.evals is None or self.settled is None:
                    self.evals = np.empty(len(self.points), np.int32)
                    self.settled = np.empty(len(self.points), bool)
                self.evals[place], self.settled[place] = part.evals.numpy(), part.settled.numpy()
        return self

    @property
    def loud(self) -> int:
        """Samples of a sound that are larger in size than 1, what a file of integers can hold."""
        if not isinstance(self.field, Field) or self.field.kind != "sound":
            return 0
        # A full-scale sound is fitted to within its error.
        return int((np.abs(self.values) * self.field.high > 1 + LOUD).sum())

    def write(self, path: Path, rate: float | None = None) -> None:
        """Write the file, whole or not at all; see `ENDINGS`.

        Args:
            path: of the file, or of a folder that does not exist yet.
            rate: samples or frames per second; None for the signal's own, of a film without one 15.

        Raises:
            DataError: it cannot be written, or there is no surface.
        """
        field, values = self.field, self.values.reshape(*self.points.shape, -1)
        if isinstance(field, ShapeField):
            write_mesh(path, surface(torch.from_numpy(values[..., 0]), field))
        elif field.kind == "sound":
            write_sound(path, torch.from_numpy(values), field, rate)
        elif field.kind == "image":
            replace_file(path, png_of(values))
        elif not path.suffix:
            write_folder(path, {f"{k:06}.png": png_of(each) for k, each in enumerate(values)})
        else:
            frames = (_channels_first(each) for each in values)
            video.write(path, frames, rate or field.rate or 15.0)


def held_bytes(points: Points, field: Field | ShapeField, *, maps: bool, derivatives: int) -> int:
    """Return the memory that what is decoded takes until it is written.

    Args:
        points: at which it is decoded.
        field: of the signal.
        maps: as `Gathered` takes it.
        derivatives: numbers of derivatives that are kept for each point, float32.
    """
    pixels = field.kind in ("image", "film")
    # A picture is copied as its file is made; marching cubes works in float64, beside a copy.
    each = 2 * field.outputs if pixels else 4 * field.outputs
    each += 24 if field.kind == "shape" else 8 * field.outputs * (field.kind == "sound")
    return len(points) * (each + 5 * maps + 4 * derivatives)


def _channels_first(frame: np.ndarray) -> np.ndarray:
    colours = np.broadcast_to(frame, (*frame.shape[:2], 3))
    return np.ascontiguousarray(colours.transpose(2, 0, 1))
