"""One CSV file per study: a tidy table with one or more rows for each measured point."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from equilibria import files
from equilibria.run.studies.data import Frame, key, written
from equilibria.run.studies.provenance import Origin

__all__ = ["LEGACY", "ORIGIN", "ResultsError", "read", "replace_point"]

LEGACY = "legacy"
"""Identity of rows from before identities were recorded: it matches no point, and is stale."""

ORIGIN = (
    *("_identity", "_took", "_commit", "_versions", "_hardware", "_threads", "_date", "_command"),
    *("_trained", "_generation"),
)
"""Columns with the origin of a point's rows, filled in only in its first row on disk."""

NUMBERS = ("_took", "_threads", "_generation")
"""Those of them that are numbers."""


class ResultsError(RuntimeError):
    """A results file that cannot be read; the message says how to fix it."""


def read(path: Path, factors: Sequence[str]) -> Frame:
    """Return the rows of a study; none where the file does not exist.

    Args:
        path: the CSV file.
        factors: names of the columns that tell points apart.

    Returns:
        A frame with the factors, the figures, and the columns of `ORIGIN`, which are filled in for
        every row of a point. An absent figure is NaN, an absent generation 1.

    Raises:
        ResultsError: the file is not a table of this study.
    """
    if not path.exists():
        return pd.DataFrame(columns=pd.Index([*factors, *ORIGIN]))
    try:
        _check_rows(path)
        frame = pd.read_csv(
            path,
            keep_default_na=False,
            na_values=["", "nan"],
            dtype={name: str for name in ORIGIN if name not in NUMBERS},
            low_memory=False,
        )
    except (ValueError, OSError, csv.Error) as error:
        reason = " ".join(str(error).split())
        raise ResultsError(f"{path} cannot be read ({reason}): restore it, or remove it") from None
    lacking = [name for name in ("_identity", "_commit") if name not in frame]
    if lacking:
        raise ResultsError(f"{path} is not a study's table: it has no column {', '.join(lacking)}")
    frame = frame.reindex(columns=list(dict.fromkeys([*factors, *frame.columns, *ORIGIN])))
    # A point's rows are contiguous, and the first has the origin.
    origins = frame.groupby(frame["_identity"].notna().cumsum())[list(ORIGIN)]
    return frame.assign(**origins.ffill().fillna({"_generation": 1}))


def _check_rows(path: Path) -> None:
    """Raise ValueError where a row has too few cells, as behind a quote that is never closed."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        columns = len(next(reader, ()))
        for row in reader:
            if len(row) != columns:
                raise ValueError(f"line {reader.line_num} has {len(row)} cells; expected {columns}")


def replace_point(
    path: Path,
    order: Sequence[Mapping[str, Any]],
    factors: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    identity: str,
    origin: Origin,
    seconds: float,
    trained: Iterable[str] = (),
) -> None:
    """Write the rows of a point into the file, in place of those that it had.

    Args:
        path: the CSV file; created if missing.
        order: factors of all points of the study, in the order of the file.
        factors: of the point.
        rows: its figures, the first row those of the point as a whole.
        identity: checksum of what determines them.
        origin: where they come from.
        seconds: how long they took.
        trained: commits at which the trainings that they were measured on started.
    """
    head = {
        "_identity": identity,
        "_took": round(seconds, 1),
        **{f"_{name}": value for name, value in origin.json().items()},
        "_trained": "; ".join(sorted(set(trained))),
    }
    names = list(dict.fromkeys(name for each in order for name in each))
    new = [{**factors, **row} for row in rows] or [dict(factors)]
    new[0] |= head
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        points = _points(path, names)
        points[key(factors, names)] = new
        places = {key(each, names): place for place, each in enumerate(order)}
        ordered = sorted(points, key=lambda each: places.get(each, len(places)))
        _write(path, names, [row for each in ordered for row in points[each]])


def _points(path: Path, names: Sequence[str]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """The rows on disk as text, by the text of their factors."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    if path.exists():
        for row in csv.DictReader(io.StringIO(path.read_text("utf-8-sig"))):
            found.setdefault(key(row, names), []).append(dict(row))
    return found


def _write(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    known = dict.fromkeys(name for row in rows for name, value in row.items() if written(value))
    figures = [name for name in known if name not in names and name not in ORIGIN]
    columns = [*names, *figures, *ORIGIN]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([written(row.get(name)) for name in columns] for row in rows)
    files.write_text(path, buffer.getvalue())
