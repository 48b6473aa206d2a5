"""Runs the cases of an experiment that are missing, while the budget lasts, and shows the rest."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from equilibria.bench import record
from equilibria.bench.record import Table
from equilibria.experiments.case import Case, CaseError, Done, Place, Results, StaleError
from equilibria.experiments.draw import draw
from equilibria.experiments.experiment import Experiment, Scale
from equilibria.train.trainer import Interrupted

__all__ = ["Outcome", "execute", "publish"]

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment.

    Attributes:
        done: results of the finished cases, in the experiment's order.
        missing: why each other case was not run.
        failed: keys of those that raised an error.
        stopped: whether the user ended it.
    """

    done: Results
    missing: Mapping[str, str]
    failed: tuple[str, ...]
    stopped: bool


def execute(
    experiment: Experiment,
    *,
    out: Path,
    console: Console,
    command: str,
    scale: Scale = "cpu",
    data_dir: Path | None = None,
    deadline: float | None = None,
    only: Callable[[str], bool] = lambda key: True,
) -> Outcome:
    """Run the cases that have left no result yet, in order; what is done is read.

    A case that fails does not stop the others: its traceback is kept in its folder. One that can
    go on later is stopped at the deadline, another begins only where its estimate fits in what is
    left. Ctrl-C ends the experiment; what is done is kept.

    Args:
        experiment: what to run.
        out: folder of all experiments.
        console: for progress.
        command: what was typed, for the record.
        scale: size of the recipes.
        data_dir: folder to look for data sets in.
        deadline: time by `time.monotonic` after which nothing begins; None for no limit.
        only: tells by its key whether a case is to be run.

    A result that was measured on another run of what it needs is not taken, and not overwritten:
    its case is missing, and the reason says what to remove.

    Raises:
        CaseError: a result is damaged or of other settings.
    """
    cases = check(experiment.cases(scale))
    done: dict[str, Done] = {}
    missing: dict[str, str] = {}
    failed: list[str] = []
    stopped = False
    for number, case in enumerate(cases, start=1):
        folder = case.folder(out, experiment.name)
        try:
            # What stands on a case that is gone cannot be told from what is out of date.
            there = all(key in done for key in case.needs)
            finished = case.read(folder, case.needed(out)) if there else None
        except StaleError as error:
            missing[case.key] = f"refused: {error}"
            continue
        if finished is not None:
            done[case.key] = finished
            continue
        reason = _obstacle(case, done, stopped, deadline, only)
        if reason:
            missing[case.key] = reason
            continue
        console.print(
            f"{experiment.name} [{number}/{len(cases)}] {case.key}: {case.description} "
            f"(about {case.minutes:g} minutes)",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        place = Place(folder, out, console, data_dir, deadline)
        try:
            done[case.key] = _run(case, place, command)
        except Timeout:
            missing[case.key] = "another process is at it"
        except (Interrupted, KeyboardInterrupt):
            if place.late:
                missing[case.key] = "begun; the budget is spent"
            else:
                missing[case.key], stopped = "begun; interrupted", True
        except Exception as error:
            (folder / "error.txt").write_text(traceback.format_exc(), "utf-8")
            missing[case.key] = f"failed: {type(error).__name__}: {error}"
            failed.append(case.key)
            console.print(f"  {missing[case.key]}", style="red", markup=False, soft_wrap=True)
    order = {case.key: done[case.key] for case in cases if case.key in done}
    return Outcome(order, missing, tuple(failed), stopped)


def _obstacle(
    case: Case,
    done: Results,
    stopped: bool,
    deadline: float | None,
    only: Callable[[str], bool],
) -> str:
    """Why the case cannot begin now; empty where it can."""
    if stopped:
        return "interrupted before"
    if not only(case.key):
        return "not asked for"
    lacking = [key for key in case.needs if key not in done]
    if lacking:
        return f"needs {', '.join(lacking)}"
    if deadline is not None:
        left = (deadline - time.monotonic()) / 60
        if left <= 0:
            return "the budget is spent"
        if not case.resumable and case.minutes > left:
            return f"needs about {case.minutes:g} minutes, {left:.1f} are left"
    return ""


def _run(case: Case, place: Place, command: str) -> Done:
    """Run the case and keep its result; Timeout where another process runs it."""
    place.folder.mkdir(parents=True, exist_ok=True)
    # Weights, checkpoints, locks: no part of what a repository keeps.
    ignore = place.out / place.folder.relative_to(place.out).parts[0] / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n!*/\n!.gitignore\n!result.json\n")
    with FileLock(place.folder / ".lock", timeout=0):
        needed = case.needed(place.out)
        finished = case.read(place.folder, needed)  # by another process, since we looked
        if finished is not None:
            return finished
        (place.folder / "error.txt").unlink(missing_ok=True)
        start = time.perf_counter()
        value = case.run(place)
        return case.write(place.folder, value, time.perf_counter() - start, command, needed)


def check(cases: Sequence[Case]) -> Sequence[Case]:
    """Return the cases.

    Raises:
        CaseError: two have one key, a key can be no folder, or a need is not met by what is before.
    """
    known: set[str] = set()
    for case in cases:
        if not _KEY.fullmatch(case.key) or case.key in known:
            raise CaseError(f"a case is called {case.key!r}, which is taken or can be no folder")
        lacking = [need for need in case.needs if need not in known]
        if lacking:
            raise CaseError(f"case {case.key} needs {', '.join(lacking)}, which no case before is")
        known.add(case.key)
    return cases


def publish(
    experiment: Experiment, outcome: Outcome, out: Path, command: str
) -> tuple[Sequence[Table], list[Path]]:
    """Write the experiment's JSON and figure from what is done.

    Returns:
        The tables for the reader, and the files.
    """
    page = experiment.show(outcome.done)
    note = f"{experiment.paper}, {experiment.subject}. {experiment.description}"
    if outcome.missing:
        reasons = "; ".join(f"{key} ({why})" for key, why in outcome.missing.items())
        note += f" Not run: {reasons}."
    paths = [
        record.write(
            out,
            experiment.file,
            command=command,
            note=note,
            tables=page.tables,
            missing=dict(outcome.missing),
            cases={
                key: {name: value for name, value in each.record.items() if name != "key"}
                for key, each in outcome.done.items()
            },
        )
    ]
    if page.panels:
        paths.append(out / f"{experiment.file}.svg")
        draw(page.panels, paths[-1])
    return page.tables, paths
