"""What a recipe writes about the signal that a network learns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.data import available
from equilibria.run.tasks.base import TaskConfig
from equilibria.zoo.signal.data import SOLIDS, Shape, SignalSet
from equilibria.zoo.signal.data.shape import NOISE
from equilibria.zoo.signal.task import reading
from equilibria.zoo.signal.task.fitting import SIGNAL, Described
from equilibria.zoo.signal.task.grid import GridTask
from equilibria.zoo.signal.task.shape import ShapeTask

__all__ = ["SignalRepresentation"]


@dataclass(frozen=True, kw_only=True)
class SignalRepresentation(TaskConfig):
    """What value does a signal have at a point? One network learns one signal, the whole of it.

    Coordinates and values lie in [-1, 1]. Images, sounds and films are trained with the mean
    squared error, shapes with the logistic loss of being inside.

    papers: Huang, Bai and Kolter 2021, (Implicit)^2; Bai 2022 (thesis), ch. 8.

    Args:
        data: path of an image, a WAV file, a film (a video, an animated image, or a folder of
            frames) or a closed mesh, also `--data FILE`; or name of a data set (`photographs`,
            `text-images`, `bach`, `street`), or of a generated shape (`knot`, `torus`). Null in a
            recipe that leaves it to that.
        signal: name of one of the data set's signals; null for the first, or for one's own file.
        size: pixels of the longer side to which images and frames are brought; null for their own,
            of generated and bundled ones those of the data set.
        channels: 1 for grey, 3 for RGB, of images and films; null for their own.
        rate: samples per second to which a sound is brought; null for its own.
        start: where the part that is learned begins: of a sound in seconds, of a film the number of
            its first frame; null for the beginning.
        seconds: how long that part of a sound is; null for the rest.
        frames: frames of that part of a film; null for all.
        split: whole: each sample is learned, and the figures say how well. quarter: pixels in even
            rows and columns of an image are learned, and those in odd ones evaluated.
        fit: values: to learn what the signal is. gradient: to learn an image from the differences
            of its neighbouring pixels alone; a constant is left free, and added before it is
            evaluated.
        near: share of a step's points of a shape that are drawn near its surface; the others are
            drawn evenly from the cube.
        noise: standard deviation of the distance, along each axis, of points near the surface.
        test: points of each kind, near the surface and in the cube, that a shape is evaluated at.
        data_seed: of the points of a shape.
    """

    data: str | None = "photographs"
    signal: str | None = None
    size: int | None = None
    channels: int | None = None
    rate: int | None = None
    start: float | None = None
    seconds: float | None = None
    frames: int | None = None
    split: Literal["whole", "quarter"] = "whole"
    fit: Literal["values", "gradient"] = "values"
    near: float = 0.5
    noise: float = NOISE
    test: int = 20_000
    data_seed: int = 0

    def __post_init__(self) -> None:
        least = {"size": 2, "rate": 1, "frames": 2, "test": 1, "data_seed": 0, "start": 0}
        for name, number in least.items():
            value = getattr(self, name)
            if value is not None and not value >= number:
                raise ValueError(f"{name} must be at least {number}; got {value}")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"channels must be 1, 3 or null; got {self.channels}")
        check_fields(self, "(0, inf)", "seconds")
        if not 0.0 <= self.near <= 1.0:
            raise ValueError(f"near is a share and must lie in [0, 1]; got {self.near}")
        if not 0.0 <= self.noise < float("inf"):
            raise ValueError(f"noise must be 0 or more; got {self.noise}")
        for name, known in (("split", ("whole", "quarter")), ("fit", ("values", "gradient"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be {' or '.join(known)}; got {getattr(self, name)}")

    @override
    def load(self, data_dir: Path | None = None) -> GridTask | ShapeTask:
        if self.data is None:
            raise ValueError(
                "there is no signal to learn: name an image, a WAV file, a film or a mesh with "
                "--data FILE"
            )
        found = reading.read(self, data_dir)
        if isinstance(found.signal, Shape):
            return ShapeTask(
                found.signal,
                found.title,
                near=self.near,
                noise=self.noise,
                test=self.test,
                seed=self.data_seed,
            )
        return GridTask(found.signal, found.title, split=self.split, fit=self.fit)

    @override
    def has_gallery(self, run: Path) -> bool:
        """Return whether the signal of a run can be drawn: a sound cannot."""
        return (run / SIGNAL).is_file() and Described.read(run).field.kind != "sound"

    @override
    def at(self, data: str | Path) -> Self:
        named = isinstance(data, str) and data in (*available(SignalSet), *SOLIDS)
        path = data if named else str(Path(data).expanduser().absolute())
        return replace(self, data=str(path), signal=None if path != self.data else self.signal)
