"""What `equilibria reproduce` does: runs studies and shows them, or lists them, or stale rows."""

from __future__ import annotations

import fnmatch
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from equilibria.run import plugins
from equilibria.run.cli.errors import explain
from equilibria.run.cli.output import Output, fit_table, names_table, say
from equilibria.run.cli.parser import ResumableStop, UserError
from equilibria.run.config import as_chosen
from equilibria.run.data import DataError
from equilibria.run.studies import catalog, runner
from equilibria.run.studies.pages import Page, count_earlier, picture, render
from equilibria.run.studies.results import LEGACY, ResultsError
from equilibria.run.studies.stale import last_change, verdicts
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.training import Store
from equilibria.run.studies.views import Grid, text
from equilibria.words import list_some, nearest, plural


def list_studies(console: Console, command: str, names: Sequence[str], scale: Scale) -> None:
    """Print all studies: how long they take, what they show, and of which paper."""
    grid = names_table(console, "study", "minutes", "what it shows", right=("minutes",))
    every: dict[int, float] = {}
    for name in names:
        try:
            study = catalog.find(name)
            points = study.points(scale)
        except Exception as error:  # of one file, which may be in the middle of an edit
            grid.add_row(name, "–", f"cannot be run: {explain(command, error)}")
            continue
        trainings = {hash(repr(each)): each for p in points for each in p.runs.values()}
        own = sum(point.minutes for point in points)
        minutes = own + sum(each.minutes for each in trainings.values())
        every |= {key: each.minutes for key, each in trainings.items()} | {hash(name): own}
        paper = f" ({study.paper}, {study.item})" if study.paper else ""
        grid.add_row(name, f"{minutes:.0f}", f"{study.description}{paper}")
    console.print(grid)
    where = "one GPU" if scale == "gpu" else "two CPU cores"
    say(
        console,
        f"Estimates for {where}; {sum(every.values()):.0f} minutes for all of them, as a training "
        f"that several studies share is run once.\nRun one with: equilibria {command} NAME "
        "--budget MINUTES",
    )


def start(arguments: Any, out: Path, command: str, console: Output) -> Session:
    """Return what a command asks for.

    Args:
        arguments: of the command.
        out: folder for tables and pictures.
        command: what was typed, for the records.
        console: to print on.
    """
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    budget = arguments.budget
    return Session(
        store=Store(Path(arguments.runs), console, arguments.data_dir, command),
        out=out,
        console=console,
        scale=arguments.scale,
        deadline=None if budget is None else time.monotonic() + 60 * budget,
        only=arguments.only,
        own=arguments.own,
    )


@dataclass(frozen=True)
class Session:
    """What all studies of one command share."""

    store: Store
    out: Path
    console: Output
    scale: Scale
    deadline: float | None
    only: Sequence[str]
    own: str | None

    def reproduce(self, names: Sequence[str]) -> None:
        """Run the studies one after the other and show each."""
        if self.scale == "gpu" and not torch.cuda.is_available():
            raise UserError("--scale gpu needs a CUDA device, and torch finds none here")
        studies = [self._study(name) for name in names]
        chosen = self._choose(names)
        self._try_out()
        failed: list[str] = []
        for name, study in zip(names, studies, strict=True):
            path = self.out / f"{catalog.rows_of(name)}.csv"
            try:
                outcome = runner.execute(
                    study,
                    path=path,
                    store=self.store,
                    console=self.console,
                    scale=self.scale,
                    deadline=self.deadline,
                    only=chosen,
                    device=self.device,
                )
                data = runner.collect(study, path, self.scale)
                page = render(study, data)
            except ResultsError as error:
                raise UserError(str(error)) from None
            drawing = self.out / f"{catalog.file_of(name)}.svg"
            if data.points["done"].any():
                picture(page, drawing)
            self._show(page, count_earlier(data), outcome.missing, [path, drawing])
            failed += [f"{name} {label}" for label in outcome.failed]
            if outcome.stopped:
                raise ResumableStop("interrupted; run the same command to continue")
        if failed:
            raise UserError(
                f"failed: {'; '.join(failed)}; the tracebacks are in "
                f"{self.store.folder / 'errors'}, and the same command retries them"
            )

    def list_stale(self, names: Sequence[str]) -> None:
        """Print, for each study, how many points are older than the last change below it."""
        counted = ("points", "measured", "current", "stale", "unknown")
        grid = names_table(
            self.console, "study", *counted, "code changed", "stale points", right=counted
        )
        for name in names:
            study, source = catalog.find(name), catalog.source_of(name)
            path = self.out / f"{catalog.rows_of(name)}.csv"
            points = runner.check(study, self.scale)
            known = runner.collect(study, path, self.scale).points
            done = known[known["done"]]
            identities = [self.identity(points[n], known["_identity"][n]) for n in done.index]
            found = verdicts(done, source, identities) if len(done) else []
            stale = [
                points[n].label
                for n, each in zip(done.index, found, strict=True)
                if each == "stale"
            ]
            counts = [len(points), len(done), *map(found.count, ("current", "stale", "unknown"))]
            grid.add_row(
                name,
                *map(str, counts),
                (last_change(source) or "unknown")[:10],
                list_some(stale, 6),
            )
        self.console.print(grid)

    def _study(self, name: str) -> Study:
        """A study, with the user's own class among its contestants."""
        study = catalog.find(name)
        if self.own is None:
            return study
        if not plugins.is_path(self.own):
            raise UserError(f"--own expects MODULE:CLASS, such as my:Aitken; got '{self.own}'")
        if study.own is None:
            raise UserError(f"--own: no class of yours can take part in {name}")
        with as_chosen("--own"):
            plugins.import_module_of(self.own)
            return study.own(self.own)

    @property
    def device(self) -> str:
        """Torch's name of the device to measure on."""
        return "cuda" if self.scale == "gpu" else "cpu"

    def identity(self, point: Point, recorded: str) -> str | None:
        """The recorded identity of a point if it is still one of its own, else its identity now;
        None where it was not recorded, or its data are missing."""
        try:
            if recorded == LEGACY:
                return None
            known = runner.identities_of(point, self.store, self.device)
        except DataError:
            return None
        return recorded if recorded in known else known[0]

    def _try_out(self) -> None:
        """Raise UserError where results could not be written, before anything is measured."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.out):
                pass
        except OSError as error:
            raise UserError(f"cannot write to --out {self.out}: {error.strerror}") from None

    def _choose(self, names: Sequence[str]) -> Callable[[Point], bool]:
        """Which points are to be run; an error where no study has one of them."""

        def fits(point: Point, pattern: str) -> bool:
            return any(
                fnmatch.fnmatch(f"{name}={value}", pattern) for name, value in point.factors.items()
            )

        points = [p for name in names for p in runner.check(catalog.find(name), self.scale)]
        for pattern in self.only:
            if "=" not in pattern:
                raise UserError(f"--only expects FACTOR=VALUE, such as seed=0; got '{pattern}'")
            if not any(fits(point, pattern) for point in points):
                known = sorted({f"{k}={v}" for p in points for k, v in p.factors.items()})
                raise UserError(f"--only: no point has '{pattern}'{nearest(pattern, known)}")
        return lambda point: all(fits(point, pattern) for pattern in self.only)

    def _show(
        self, page: Page, older: str, missing: Mapping[str, runner.Missing], paths: Sequence[Path]
    ) -> None:
        """Print the tables, which points are older, why others are missing, and the files."""
        for grid in page.grids:
            print_grid(grid, self.console)
        if older:
            say(self.console, f"{older}: its results can differ beyond rounding from this one's.")
        for label, (reason, kept) in missing.items():
            if reason not in (runner.BEGUN, runner.BUDGET, runner.NOT_REQUESTED):
                say(
                    self.console,
                    f"{'earlier result shown' if kept else 'not run'}: {label}: {reason}",
                )
        late = [each for each in missing.values() if each.reason in (runner.BEGUN, runner.BUDGET)]
        if lacking := sum(not each.kept for each in late):
            points = plural(lacking, "point")
            say(self.console, f"Not run within this budget: {points}; a larger --budget continues.")
        if kept := sum(each.kept for each in late):
            say(
                self.console,
                f"Earlier results are shown for {plural(kept, 'point')}, not checked against the "
                "current study: see --stale.",
            )
        written = [str(path) for path in paths if path.exists()]
        if written:
            self.console.finish(f"Written to {' and '.join(written)}.", "\n".join(written))
        else:
            say(self.console, "Nothing has been measured yet.")


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table."""
    rows = [list(map(text, row)) for row in grid.rows]
    for table in fit_table(console, grid.title, grid.columns, rows, lead=grid.lead):
        console.print(table)
