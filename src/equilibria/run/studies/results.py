"""One CSV file per study: a tidy table with one or more rows for each measured point."""

from __future__ import annotations

import csv
import datetime
import functools
import io
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock

from equilibria import files
from equilibria.run.studies.identity import GENERATION

# --- provenance -----------------------------------------------------------------------------------

# What a figure depends on besides its settings: commit, versions, hardware, date.


SOURCE = Path(__file__).resolve().parents[2]  # the package
PACKAGES = ("equilibria", "torch", "numpy")

CHANGED = " and changes"
"""Suffix of a commit: files of the package differed from it."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a row comes from, as it was when its measurement started.

    Attributes:
        commit: that was checked out; `UNKNOWN` where the package does not run from a checkout.
        versions: of packages, in one line.
        hardware: cores, processor and GPU in words; no name of a host.
        threads: of torch.
        date: of the start, YYYY-MM-DD.
        command: what was typed.
        generation: of the core, see `identity.GENERATION`; older records have none.
    """

    commit: str
    versions: str
    hardware: str
    threads: int
    date: str
    command: str = ""
    generation: int = 1

    @classmethod
    def now(cls, command: str = "", peers: Sequence[str] = ()) -> Origin:
        """Return what holds at this moment.

        Args:
            command: what was typed.
            peers: other packages whose version belongs to the figures.
        """
        return cls(
            commit=_commit(),
            versions=", ".join(f"{name} {v}" for name, v in _versions(tuple(peers)).items()),
            hardware=hardware(),
            threads=torch.get_num_threads(),
            date=datetime.date.today().isoformat(),
            command=command,
            generation=GENERATION,
        )

    @property
    def conditions(self) -> str:
        """What seconds depend on: threads and hardware."""
        return f"{self.threads} threads, {self.hardware}"


def _commit() -> str:
    top = git("rev-parse", "--show-toplevel")
    head = git("rev-parse", "HEAD")
    if top is None or head is None or Path(top).resolve() / "src" / "equilibria" != SOURCE:
        return "unknown"
    return head + (CHANGED if git("status", "--porcelain", "--", ":/src", ":/papers") else "")


def git(*words: str) -> str | None:
    """Return Git's output for the package's checkout; None if the command fails."""
    try:
        run = subprocess.run(
            ["git", "-C", str(SOURCE), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def _versions(peers: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in (*PACKAGES, *peers):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@functools.cache
def hardware() -> str:
    """Return cores, processor and GPU in words."""
    words = f"{os.cpu_count()} cores {_processor()}"
    if torch.cuda.is_available():
        words += f", {torch.cuda.get_device_name()}"
    return words


def _processor() -> str:
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return platform.machine()


# --- results --------------------------------------------------------------------------------------


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
        **{f"_{name}": value for name, value in asdict(origin).items()},
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
    known = dict.fromkeys(
        name for row in rows for name, value in row.items() if format_value(value)
    )
    figures = [name for name in known if name not in names and name not in ORIGIN]
    columns = [*names, *figures, *ORIGIN]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([format_value(row.get(name)) for name in columns] for row in rows)
    files.write_text(path, buffer.getvalue())


# --- data -----------------------------------------------------------------------------------------

# The rows of a study as its views read them: one tidy table, and the requested grid.


Frame = Any
"""A pandas.DataFrame; the types that a checker infers for its methods are unions of everything."""


@dataclass(frozen=True)
class Data:
    """What was measured of a study.

    Attributes:
        rows: every row, with the factors of its point as the grid has them; figures of the point as
            a whole stand in its first row alone.
        points: one row for each point of the grid, in its order, with the columns of the point's
            first row, and `done`, whether it was measured.
        factors: names of the columns that tell points apart.
    """

    rows: Frame
    points: Frame
    factors: Sequence[str]

    @classmethod
    def of(cls, rows: Frame, factors: Sequence[Mapping[str, Any]]) -> Data:
        """Join the rows to the grid; those of other points than the grid's are left out.

        Args:
            rows: as `results.read` gives them.
            factors: of all points, in the order of the grid.
        """
        keys = list(dict.fromkeys(name for each in factors for name in each))
        rows = rows.reindex(columns=[*keys, *(c for c in rows.columns if c not in keys)])
        wanted = pd.DataFrame([dict(each) for each in factors], columns=pd.Index(keys))
        place = {key(each, keys): number for number, each in enumerate(factors)}
        at = [place.get(key(row, keys)) for row in rows[keys].to_dict("records")]
        rows = rows.assign(_at=pd.array(at, dtype="Int64")).dropna(subset=["_at"])
        rows = rows.sort_values("_at", kind="stable")
        # A file holds text: next to "all", 1 would be read as "1", and "1" alone as 1.
        rows[keys] = wanted.loc[rows["_at"].tolist()].set_axis(rows.index)
        heads = rows.drop_duplicates("_at").set_index("_at")
        points = wanted.join(heads.drop(columns=keys))
        points["done"] = points.index.isin(heads.index)
        return cls(rows.drop(columns="_at").reset_index(drop=True), points, keys)

    def get(self, **factors: Any) -> Any:
        """Return the figures of a point as a whole; None where it was not run."""
        found = select(self.points, factors)
        found = found[found["done"]]
        return None if found.empty else found.iloc[0]

    def series(self, index: str, **factors: Any) -> Frame:
        """Return the rows of some points that have a column `index`, such as one an epoch."""
        if index not in self.rows:
            return self.rows.iloc[:0].assign(**{index: []})
        found = select(self.rows, factors)
        return found[found[index].notna()]


def select(frame: Frame, where: Mapping[str, Any]) -> Frame:
    """Return the rows whose columns have these values; a list or tuple names several."""
    for name, value in where.items():
        if name not in frame:
            return frame.iloc[:0]
        several = list(value) if isinstance(value, list | tuple) else [value]
        frame = frame[frame[name].isin(several)]
    return frame


def key(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return a point's factors as text, alike in the grid and as a file is read.

    1 and 1.0 are one level, as are floats that agree in nine digits; a factor that it lacks is "".
    """
    return tuple(_level(row.get(name)) for name in names)


def _level(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return format_value(value)
    return "" if math.isnan(number) else format_value(number)


def format_value(value: Any) -> str:
    """Return a figure as a file has it: a line of text, "" for None, NaN and infinity by name.

    Nine digits of a float tell apart those of 32 bits.
    """
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, float):
        whole = math.isfinite(value) and value == int(value) and abs(value) < 2**53
        return str(int(value)) if whole else f"{value:.9g}"
    return " ".join(str(value).splitlines())
