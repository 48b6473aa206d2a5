"""Runs the missing points of a study, within the budget."""

from __future__ import annotations

import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from filelock import FileLock, Timeout
from rich.console import Console

from equilibria.run import processes
from equilibria.run.data import DataError
from equilibria.run.loop import Interrupted
from equilibria.run.studies import results
from equilibria.run.studies.identity import GENERATION, decides, digest
from equilibria.run.studies.results import Data, Origin, key
from equilibria.run.studies.study import Context, Point, Scale, Study, StudyError
from equilibria.run.studies.training import Store, Trained


class Missing(NamedTuple):
    """A point without rows of its identity.

    Attributes:
        reason: why it was not measured.
        kept: rows of another identity, or that were not compared with it, are still shown.
    """

    reason: str
    kept: bool


BUDGET, BEGUN = "the budget is spent", "begun; the budget is spent"
NOT_REQUESTED = "not requested"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a study.

    Attributes:
        missing: label of each point without a row of its identity, and why it was not run.
        failed: labels of those that raised an error.
        stopped: whether the user interrupted it.
    """

    missing: Mapping[str, Missing]
    failed: tuple[str, ...]
    stopped: bool


def check(study: Study, scale: Scale) -> Sequence[Point]:
    """Return the points of a study.

    Raises:
        StudyError: two have the same factors.
    """
    points = study.points(scale)
    names = list(dict.fromkeys(name for point in points for name in point.factors))
    keys = [key(point.factors, names) for point in points]
    counts = Counter(keys)
    for point, each in zip(points, keys, strict=True):
        if counts[each] > 1:
            raise StudyError(f"study '{study.title}' has two points with the factors {point.label}")
    return points


def collect(study: Study, path: Path, scale: Scale = "cpu") -> Data:
    """Return the results of a study so far.

    Args:
        study: whose grid it is.
        path: its CSV file, which may be missing.
        scale: size of the recipes.
    """
    return _collect(check(study, scale), path)


def _collect(points: Sequence[Point], path: Path) -> Data:
    factors = [point.factors for point in points]
    names = list(dict.fromkeys(name for each in factors for name in each))
    return Data.of(results.read(path, names), factors)


def identity_of(
    point: Point, store: Store, device: str = "cpu", generation: int = GENERATION
) -> str:
    """Return the checksum of what decides a point's rows.

    Args:
        point: to measure.
        store: of the trainings.
        device: torch's name of the device to measure on.
        generation: of the core.

    Raises:
        DataError: data that it needs are unavailable, so their checksum is unknown.
    """
    return digest(
        {
            **({} if device == "cpu" else {"device": device}),
            "factors": point.factors,
            "measures": point.measures,
            "settings": point.settings,
            "runs": {name: store.identity(each, generation) for name, each in point.runs.items()},
            "reads": [[decides(each), store.task(each).checksum] for each in point.reads],
        },
        generation,
    )


def identities_of(point: Point, store: Store, device: str = "cpu") -> list[str]:
    """Return the identities of a point under each generation of the core, the newest first.

    Rows under any of them are a result of the point. Those of an earlier generation are kept, and
    wherever they are shown they are counted: thousands of hours went into them, and not every
    change of the core affects every row.
    """
    return [identity_of(point, store, device, each) for each in range(GENERATION, 0, -1)]


def execute(
    study: Study,
    *,
    path: Path,
    store: Store,
    console: Console,
    scale: Scale = "cpu",
    deadline: float | None = None,
    only: Callable[[Point], bool] = lambda point: True,
    device: str = "cpu",
) -> Outcome:
    """Measure the points that have no rows of their `identities_of` yet, in order.

    A point that fails does not stop the others: its traceback is kept in the store's folder
    `errors`. A training is stopped at the deadline and resumed the next time; another measurement
    begins only where its estimate fits in what is left. Ctrl-C ends the study; what is done is
    kept. Rows of another identity stay until those that replace them are measured. Several
    processes may run one study: each point is measured by one of them.

    Args:
        study: what to run.
        path: its CSV file.
        store: of the trainings.
        console: for progress.
        scale: size of the recipes.
        deadline: time by `time.monotonic` after which nothing begins; None for no limit.
        only: tells whether a point is to be run.
        device: torch's name of the device to measure on.
    """
    points = check(study, scale)
    identities = _identities(points, path)
    missing, failed, stopped = dict[str, Missing](), list[str](), False
    for number, (point, there) in enumerate(zip(points, identities, strict=True), start=1):
        label, reason = point.label, ""
        late = deadline is not None and time.monotonic() >= deadline
        if stopped or late or not only(point):
            reason = "not begun" if stopped else NOT_REQUESTED if not only(point) else BUDGET
            missing[label] = Missing(reason, isinstance(there, str))
            continue
        try:
            identity, *earlier = identities_of(point, store, device)
            if there in (identity, *earlier):
                continue
            if obstacle := _obstacle(point, store, deadline):
                missing[label] = Missing(obstacle, isinstance(there, str))
                continue
            store.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(store.folder / f".{identity}.lock", timeout=0):
                if _identities(points, path)[number - 1] == identity:
                    continue  # another process has measured it since
                _announce(point, f"{number}/{len(points)}", store, console)
                origin, start = Origin.now(store.command, study.peers), time.perf_counter()
                runs = _train(point, store, deadline)
                rows = _measure(point, runs, store, device)
                results.replace_point(
                    path,
                    [each.factors for each in points],
                    point.factors,
                    rows,
                    identity=identity,
                    origin=origin,
                    seconds=time.perf_counter() - start,
                    trained=[run.origin.commit for run in runs.values()],
                )
        except Timeout:
            reason = "another process is running it"
        except DataError as error:
            reason = f"no data: {error}"
        except (Interrupted, KeyboardInterrupt):
            stopped = deadline is None or time.monotonic() < deadline
            reason = "begun; interrupted" if stopped else BEGUN
        except Exception as error:
            reason = f"failed: {type(error).__name__}: {error}"
            failed.append(label)
            file = _write_traceback(store.folder / "errors", path.stem, label)
            console.print(f"  {reason} (see {file})", style="red", markup=False, soft_wrap=True)
        if reason:
            missing[label] = Missing(reason, isinstance(there, str))
    return Outcome(missing, tuple(failed), stopped)


def _announce(point: Point, number: str, store: Store, console: Console) -> None:
    """Say which point is measured next, and for how long, about."""
    what = f"[{number}] {point.description or point.label}"
    about = f"{what} (about {_minutes(point, store):.2g} minutes)"
    console.print(about, markup=False, highlight=False, soft_wrap=True)


def _write_traceback(folder: Path, study: str, label: str) -> Path:
    """Write the traceback of the error being handled to a file of a point's own; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w=.,+ -]", "-", f"{study} {label}")[:100]
    file = folder / f"{name} {digest(label)[:4]}.txt"
    file.write_text(traceback.format_exc(), "utf-8")
    return file


def _identities(points: Sequence[Point], path: Path) -> list[Any]:
    """The identity of each point's rows, NaN of one that has none."""
    return _collect(points, path).points["_identity"].tolist()


def _train(point: Point, store: Store, deadline: float | None) -> dict[str, Trained]:
    """Run the trainings of a point that are not finished, up to the deadline."""

    def late() -> bool:
        return deadline is not None and time.monotonic() >= deadline

    return {name: store.run(training, late) for name, training in point.runs.items()}


def _measure(
    point: Point, runs: Mapping[str, Trained], store: Store, device: str
) -> list[dict[str, Any]]:
    """Take the measures of a point; the first row is of the point as a whole."""
    context = Context(
        factors=point.factors,
        runs=runs,
        reads=point.reads,
        tasks=store.task,
        console=store.console,
        device=device,
    )
    head: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    random = processes.random_state()
    try:
        for measure in point.measures:
            processes.seed_all(0)  # a measure is the same whichever came before
            found = measure(context)
            if isinstance(found, Mapping):
                head |= cast(Mapping[str, Any], found)
            else:
                rows += [dict(row) for row in found]
    finally:
        processes.set_random_state(random)
    rows = [head, *rows] if head or not rows else rows
    for name, level in point.factors.items():
        if any(row.get(name, level) != level for row in rows):
            raise StudyError(f"a measure returns a column '{name}', which is a factor: rename it")
    return rows


def _minutes(point: Point, store: Store) -> float:
    """Estimated minutes left for a point."""
    trainings = [each for each in point.runs.values() if store.find(each) is None]
    return point.minutes + sum(each.minutes for each in trainings)


def _obstacle(point: Point, store: Store, deadline: float | None) -> str:
    """Why the point cannot begin now; empty if it can. Trainings can always resume later."""
    if deadline is None or any(store.find(each) is None for each in point.runs.values()):
        return ""
    left = (deadline - time.monotonic()) / 60
    if point.minutes > left:
        return f"it needs about {point.minutes:g} minutes, and {left:.1f} are left"
    return ""
