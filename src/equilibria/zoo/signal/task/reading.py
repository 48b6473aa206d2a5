"""The signal that a recipe names: of the user's own file, or one of a data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from equilibria.run.data import DataError, available, load
from equilibria.zoo.signal import data as signals
from equilibria.zoo.signal.data import Shape, Signal, SignalSet
from equilibria.zoo.signal.data.photographs import GREY

if TYPE_CHECKING:
    from equilibria.zoo.signal.task.config import SignalRepresentation

__all__ = ["Found", "coloured", "read"]

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
        signal = _sized(signal, config)
    if config.channels is not None:
        signal = coloured(signal, config.channels)
    return Found(signal, whole.title)


def _of_file(config: SignalRepresentation, path: Path) -> Signal | Shape:
    kind = signals.kind_of(path)
    _check(config, kind, path.name)
    if kind == "shape":
        return signals.read_shape(path)
    if kind == "sound":
        return signals.read_sound(path, config.rate, config.start or 0.0, config.seconds)
    if kind == "image":
        signal = _sized(signals.read_image(path), config)
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
    return signal if config.channels is None else coloured(signal, config.channels)


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


def _sized(signal: Signal, config: SignalRepresentation) -> Signal:
    return signal if config.size is None else signal.resized(_sides(signal, config.size))


def _sides(signal: Signal, longer: int) -> tuple[int, int]:
    high, wide = signal.field.shape[-2:]
    share = longer / max(high, wide)
    return max(2, round(share * high)), max(2, round(share * wide))


def coloured(signal: Signal, channels: int) -> Signal:
    """Return an image or a film in grey or in RGB.

    Args:
        signal: with 1 or 3 channels.
        channels: 1 or 3.
    """
    own = signal.field.channels
    if own == channels:
        return signal
    if channels == 1:
        values = (signal.values * torch.tensor(GREY)).sum(-1, keepdim=True)
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
    colour = "" if field.channels == 1 else " in colour"
    frames = f"{field.shape[0]} frames of " if field.kind == "film" else ""
    return f", {frames}{words}{colour}"
