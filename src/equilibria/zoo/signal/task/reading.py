"""The signal that a recipe names: of the user's own file, or one of a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.data import DataError, available, load
from equilibria.run.tasks.base import TaskConfig
from equilibria.zoo.io.tasks import check_channels
from equilibria.zoo.signal import data as signals
from equilibria.zoo.signal.data import SOLIDS, Shape, Signal, SignalSet
from equilibria.zoo.signal.data.sets import GRAY
from equilibria.zoo.signal.data.shape import NOISE
from equilibria.zoo.signal.task.fitting import SIGNAL, Described
from equilibria.zoo.signal.task.grid import GridTask
from equilibria.zoo.signal.task.shape import ShapeTask

# --- config ---------------------------------------------------------------------------------------

# What a recipe writes about the signal that a network learns.


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
        check_fields(self, "[2, inf)", "size", "frames")
        check_fields(self, "[1, inf)", "rate", "test")
        check_fields(self, "[0, inf)", "data_seed", "start", "noise")
        check_fields(self, "(0, inf)", "seconds")
        check_fields(self, "[0, 1]", "near")
        check_channels(self.channels)
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
        found = read(self, data_dir)
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


# --- reading --------------------------------------------------------------------------------------


_FOR = {
    "size": ("image", "film"),
    "channels": ("image", "film"),
    "rate": ("sound",),
    "start": ("sound", "film"),
    "seconds": ("sound",),
    "frames": ("film",),
    "split": ("image",),
    "fit": ("image",),
    "near": ("shape",),
    "noise": ("shape",),
    "test": ("shape",),
    "data_seed": ("shape",),
}
"""Options, and the kinds of signals that they are for."""

_KINDS = {"bach": "sound", "photographs": "image", "street": "film", "text-images": "image"}
"""Data sets whose readers take options."""

_STREET = 0.75
"""Height of a frame of `street` in widths."""


class Found(NamedTuple):
    """A signal, and what tables call it."""

    signal: Signal | Shape
    title: str


def read(config: SignalRepresentation, data_dir: Path | None = None) -> Found:
    """Read the signal that a config names.

    Raises:
        ValueError: an option is for signals of another kind; or there is no such data set, or no
            such signal in it.
        DataError: it is missing, damaged, or no signal.
    """
    name = config.data
    assert name is not None  # as `load` has checked
    if name in available(SignalSet):
        found = _of_set(config, name, data_dir)
        return Found(found.signal, f"{found.signal.name} ({found.title}){_size(found.signal)}")
    path = Path(name).expanduser()
    generated = name in signals.SOLIDS
    if path.name == name and not generated and not path.exists():
        raise ValueError(
            f"there is no file {name}, and no data set of that name: choose from "
            f"{', '.join([*available(SignalSet), *signals.SOLIDS])}, or name a file of your own"
        )
    if config.signal is not None:
        raise ValueError(
            f"signal is {config.signal!r}, which names one of a data set, and data is {name}, a "
            "single signal: set task.signal to null"
        )
    if generated:
        _check(config, "shape", name)
        signal = signals.solid(name)
    else:
        signal = _of_file(config, path)
    return Found(signal, f"{signal.name}{_size(signal)}")


def _of_set(config: SignalRepresentation, name: str, data_dir: Path | None) -> Found:
    kind = _KINDS.get(name)
    if kind is not None:
        _check(config, kind, name)
    given: dict[str, Any] = {}
    if kind == "sound":
        given = {"rate": config.rate, "start": config.start, "seconds": config.seconds}
    elif kind == "image":
        given = {"size": config.size, "channels": config.channels}
        if name == "photographs" and config.signal is not None:
            given["names"] = [config.signal]
    elif kind == "film":
        given = {"count": config.frames, "start": _frame(config)}
        if config.size is not None:
            given["size"] = (round(_STREET * config.size), config.size)
    given = {option: value for option, value in given.items() if value is not None}
    whole: SignalSet = load(name, data_dir, kind=SignalSet, **given)
    signal = whole[0 if config.signal is None else config.signal]
    if kind is None:
        _check(config, signal.field.kind, name, ("rate", "start", "seconds", "frames"))
        signal = _resize(signal, config)
    if config.channels is not None:
        signal = change_channels(signal, config.channels)
    return Found(signal, whole.title)


def _of_file(config: SignalRepresentation, path: Path) -> Signal | Shape:
    kind = signals.kind_of(path)
    _check(config, kind, path.name)
    if kind == "shape":
        return signals.read_shape(path)
    if kind == "sound":
        return signals.read_sound(path, config.rate, config.start or 0.0, config.seconds)
    if kind == "image":
        signal = _resize(signals.read_image(path), config)
    else:
        first = _frame(config) or 0
        chosen = slice(first, None if config.frames is None else first + config.frames)
        size = None
        if config.size is not None:  # frames are brought to it one by one
            few = signals.read_film(path, slice(first, first + 2))
            size = _sides(few, config.size)
        signal = signals.read_film(path, chosen, size)
        if config.frames is not None and signal.field.shape[0] < config.frames:
            raise DataError(
                f"{path} has {signal.field.shape[0]} frames from frame {first} on, and "
                f"{config.frames} are asked for: set task.frames to that, or to null for all"
            )
    return signal if config.channels is None else change_channels(signal, config.channels)


def _check(config: SignalRepresentation, kind: str, name: str, never: tuple[str, ...] = ()) -> None:
    """Raise ValueError if an option is given that is not for signals of a kind, or never is."""
    for option, kinds in _FOR.items():
        default = type(config).__dataclass_fields__[option].default
        if getattr(config, option) == default:
            continue
        if option in never:
            raise ValueError(f"{option} is given, which the data set {name} does not take")
        if kind not in kinds:
            raise ValueError(
                f"{option} is for {' and '.join(f'{each}s' for each in kinds)}, and {name} is "
                f"{'an' if kind == 'image' else 'a'} {kind}: leave it out"
            )


def _frame(config: SignalRepresentation) -> int | None:
    """The number of a film's first frame."""
    start = config.start
    if start is not None and start != int(start):
        raise ValueError(f"start is {start}: of a film it is the number of a frame")
    return None if start is None else int(start)


def _resize(signal: Signal, config: SignalRepresentation) -> Signal:
    return signal if config.size is None else signal.resize(_sides(signal, config.size))


def _sides(signal: Signal, longer: int) -> tuple[int, int]:
    high, wide = signal.field.shape[-2:]
    share = longer / max(high, wide)
    return max(2, round(share * high)), max(2, round(share * wide))


def change_channels(signal: Signal, channels: int) -> Signal:
    """Return an image or a film in grey or in RGB.

    Args:
        signal: with 1 or 3 channels.
        channels: 1 or 3.
    """
    own = signal.field.channels
    if own == channels:
        return signal
    if channels == 1:
        values = (signal.values * torch.tensor(GRAY)).sum(-1, keepdim=True)
    else:
        values = signal.values.expand(*signal.field.shape, channels).contiguous()
    return replace(signal, field=replace(signal.field, channels=channels), values=values)


def _size(signal: Signal | Shape) -> str:
    """How large a signal is, for titles."""
    if isinstance(signal, Shape):
        return f", {len(signal.mesh.faces):,} triangles"
    field = signal.field
    if field.kind == "sound":
        assert field.rate is not None
        channels = "" if field.channels == 1 else f", {field.channels} channels"
        return f", {field.shape[0] / field.rate:.3g} s at {field.rate:,.0f} Hz{channels}"
    words = " x ".join(map(str, field.shape[-2:]))
    color = "" if field.channels == 1 else " in colour"
    frames = f"{field.shape[0]} frames of " if field.kind == "film" else ""
    return f", {frames}{words}{color}"
