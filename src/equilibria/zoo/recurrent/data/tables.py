"""One sequence from a file: CSV with a row for each step, an array of NumPy, or a recording."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from equilibria.run.data.storage import DataError
from equilibria.zoo.io import arrays, delimited, sound
from equilibria.zoo.io.delimited import Format

SUFFIXES = (".csv", ".tsv", ".txt", ".npy", ".npz", *sound.SUFFIXES)

TEXTS = (".csv", ".tsv", ".txt")

COMMAS = Format()

Missing = Literal["error", "drop", "interpolate"]


@dataclass(frozen=True)
class Reading:
    """How the files of a folder are read.

    Attributes:
        form: Of the texts.
        missing: What happens to a step in which a value is missing: ``"error"`` refuses the file,
            ``"drop"`` leaves the step out, ``"interpolate"`` fills each channel linearly between
            its neighbours in time, and with the nearest value at the ends.
        channel: Which channel of a recording is read, counted from 1; None for their mean.
    """

    form: Format = COMMAS
    missing: Missing = "error"
    channel: int | None = None


def read(path: Path, how: Reading) -> tuple[np.ndarray, tuple[str, ...]]:
    """A sequence, and what its channels are called.

    A text has one row of numbers for each step, and may begin with a row of names. An array
    is ``(time, channels)`` or ``(time,)``; an .npz file has one array, or one that is called x.
    Of a recording the sequence is 32 log-mel features every 10 ms (`mel.log_mel`).

    Args:
        path: A file that ends in one of `SUFFIXES`.
        how: To read it.

    Returns:
        Finite numbers ``(time, channels)``, float64, or float32 of a recording, and a name for
        each channel, or none.

    Raises:
        DataError: If the file is another one, damaged, empty or too large, or has anything else
            in it; the message names the line.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise DataError(
            f"{path} is none of {', '.join(SUFFIXES)}: convert it, or keep it outside the folder"
        )
    if kind in TEXTS:
        return _text(path, how)
    if kind in sound.SUFFIXES:
        return sound.features(path, how.channel).numpy(), sound.CHANNELS
    found = arrays.read(path)
    if len(found) != 1 and "x" not in found:
        raise DataError(
            f"{path} has the arrays {', '.join(found) or '(none)'}: expected one, or one called x"
        )
    name, each = ("x", found["x"]) if "x" in found else next(iter(found.items()))
    name = f"{name} in {path}" if name else str(path)
    if each.ndim not in (1, 2) or 0 in each.shape:
        raise DataError(
            f"{name} has the shape {each.shape}: expected (time, channels) or (time,), with at "
            "least one step and one channel"
        )
    values = arrays.real(each if each.ndim == 2 else each[:, None], name)
    return fill(values, how.missing, lambda *at: f"{name} at [{at[0]}, {at[1]}]"), ()


def fill(values: np.ndarray, missing: Missing, where: Callable[[int, int], str]) -> np.ndarray:
    """A sequence without its missing values; see `Reading.missing`.

    Args:
        values: ``(time, channels)``, NaN where one is missing.
        missing: What happens then.
        where: Names the place of a step and a channel, both counted from 0, for messages.

    Raises:
        DataError: If a value is missing and that is an error, or nothing is left of the sequence
            or of a channel.
    """
    lost = np.isnan(values)
    if not lost.any():
        return values
    step, column = np.argwhere(lost)[0].tolist()
    if missing == "error":
        raise DataError(
            f"{where(step, column)}: the value is missing; fill it in, or train with "
            "--task.missing drop (leave such steps out) or --task.missing interpolate"
        )
    if missing == "drop":
        if lost.any(1).all():
            raise DataError(f"{where(step, column)}: a value is missing here, and in all steps")
        return values[~lost.any(1)]
    for column in np.flatnonzero(lost.any(0)).tolist():
        there = np.flatnonzero(~lost[:, column])
        if not len(there):
            raise DataError(f"{where(0, column)}: all values of channel {column + 1} are missing")
        values[:, column] = np.interp(np.arange(len(values)), there, values[there, column])
    return values


def _text(path: Path, how: Reading) -> tuple[np.ndarray, tuple[str, ...]]:
    numbers, lines, names = array("d"), array("q"), ()
    width = 0
    for line, row in delimited.rows(path, how.form):
        if width == 0 and (found := how.form.names(row)) is not None:
            names, width = found, len(row)
            if "" in names:  # as pandas calls its index
                raise DataError(
                    f"{path}, line {line}: column {names.index('') + 1} has no name; name it, "
                    "or leave it out if it only counts the lines"
                )
            continue
        width = width or len(row)
        if len(row) != width:
            raise DataError(
                f"{path}, line {line}: {len(row)} values, where lines before have {width} "
                f"({how.form})"
            )
        for column, cell in enumerate(row):
            try:
                numbers.append(how.form.number(cell))
            except ValueError:
                raise DataError(
                    f"{path}, line {line}, column {column + 1}: {cell!r} is not a number; "
                    f"expected {how.form}, and names in the first line only"
                ) from None
        lines.append(line)
    if not lines:
        raise DataError(f"{path} has no steps: expected a line of numbers for each")
    whole = np.frombuffer(numbers).reshape(-1, width)
    if len(wrong := np.argwhere(np.abs(whole) > np.finfo(np.float32).max)):
        step, column = wrong[0].tolist()
        raise DataError(
            f"{path}, line {lines[step]}, column {column + 1}: {whole[step, column]} is not a "
            "finite number in float32"
        )
    return fill(
        whole, how.missing, lambda step, column: f"{path}, line {lines[step]}, column {column + 1}"
    ), names
