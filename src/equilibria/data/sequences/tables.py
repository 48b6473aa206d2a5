"""One sequence from a file: CSV with a row for each step, an array of NumPy, or a recording."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from equilibria.data.errors import DataError, reading
from equilibria.data.regular import open_file
from equilibria.data.sequences import arrays, recordings

SUFFIXES = (".csv", ".npy", ".npz", ".wav")


def read(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """A sequence, and what its channels are called.

    A CSV file has one row of numbers for each step, and may begin with a row of names. An array
    is ``(time, channels)`` or ``(time,)``; an .npz file has one array, or one that is called x.
    Of a WAV file the sequence is 32 log-mel features every 10 ms (`mel.log_mel`).

    Args:
        path: A file that ends in one of `SUFFIXES`.

    Returns:
        Finite numbers ``(time, channels)``, float32, and a name for each channel, or none.

    Raises:
        DataError: If the file is another one, damaged, empty or too large, or has anything else
            in it; the message names the line.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise DataError(
            f"{path} is none of {', '.join(SUFFIXES)}: convert it, or keep it outside the folder"
        )
    if kind == ".csv":
        return _csv(path)
    if kind == ".wav":
        return recordings.features(path).numpy(), recordings.CHANNELS
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
    return arrays.finite(each if each.ndim == 2 else each[:, None], name), ()


def _csv(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    numbers, lines, names = array("d"), array("q"), ()
    width = 0
    for line, row in rows(path):
        try:
            values = list(map(float, row))
        except ValueError:
            wrong = [not _is_number(cell) for cell in row]
            if width == 0 and all(wrong):
                names, width = tuple(cell.strip() for cell in row), len(row)
                if "" in names:  # as pandas calls its index
                    raise DataError(
                        f"{path}, line {line}: column {names.index('') + 1} has no name; name it, "
                        "or leave it out if it only counts the lines"
                    ) from None
                continue
            column = wrong.index(True)
            raise DataError(
                f"{path}, line {line}, column {column + 1}: {row[column]!r} is not a number; "
                "expected numbers separated by commas, and names in the first line only"
            ) from None
        width = width or len(row)
        if len(row) != width:
            raise DataError(
                f"{path}, line {line}: {len(row)} values, where lines before have {width}"
            )
        numbers.extend(values)
        lines.append(line)
    if not lines:
        raise DataError(f"{path} has no steps: expected a line of numbers for each")
    whole = np.frombuffer(numbers).reshape(-1, width)
    with np.errstate(over="ignore"):
        found = whole.astype(np.float32)
    if len(wrong := np.argwhere(~np.isfinite(found))):
        step, column = wrong[0].tolist()
        raise DataError(
            f"{path}, line {lines[step]}, column {column + 1}: {whole[step, column]} is not a "
            "finite number; leave out or fill in what is missing"
        )
    return found, names


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not empty, each with the number of its line.

    Raises:
        DataError: If it cannot be read, is too large, or is not a text in UTF-8.
    """
    with reading(path), open_file(path) as file:
        arrays.check_size(path.stat().st_size, f"{path} has")
        # Excel puts a byte order mark before a text in UTF-8.
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        found = csv.reader(text, skipinitialspace=True, strict=True)
        try:
            yield from ((found.line_num, row) for row in found if row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"{path} is not a CSV file in UTF-8 ({error}, after line {found.line_num}): remove "
                "or replace it"
            ) from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
