"""Measure the tables and figures of the papers again, or, without a name, list the studies.

Results are kept: the same command continues where it was interrupted or its budget was spent.
Tables and a figure are drawn from the existing results, with the papers' figures next to ours;
points not run are marked. --budget 0 only draws.
"""

from __future__ import annotations

import fnmatch
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table as RichTable

from equilibria.cli.parser import Parser, UserError
from equilibria.train.config import nearest

if TYPE_CHECKING:
    from equilibria.experiments.pages import Page
    from equilibria.experiments.study import Point, Scale
    from equilibria.experiments.views import Grid

OUT, RUNS = "results", "runs/studies"


def main(argv: Sequence[str]) -> None:
    """Run `equilibria reproduce` with the words `argv`."""
    run("reproduce", __doc__, argv)


def run(command: str, description: str | None, argv: Sequence[str], folder: str = "") -> None:
    """Run a command that measures studies.

    Args:
        command: its name.
        description: the paragraph that opens its --help.
        argv: words of the command line.
        folder: of the studies to offer, such as "bench"; empty for all.
    """
    arguments = _parser(command, description).parse_args(list(argv))
    for option, minimum in (("budget", 0), ("threads", 1)):
        value = getattr(arguments, option)
        if value is not None and not value >= minimum:
            raise UserError(f"--{option} must be {minimum} or more; got {value:g}")

    from equilibria.experiments import catalogue

    console = _console()
    known = [name for name in catalogue.names() if name.startswith(folder)]
    names = _named(arguments.names, known, folder)
    if arguments.stale:
        _stale(console, names or known, _out(arguments), arguments.scale)
    elif names:
        words = shlex.join(["equilibria", command, *argv])
        _Session.start(arguments, words, console).reproduce(names)
    else:
        _list(console, command, known, arguments.scale)


def _parser(command: str, description: str | None) -> Parser:
    parser = Parser(command, description)
    parser.add_argument(
        "names",
        type=str,
        nargs="*",
        metavar="NAME",
        help="studies, or patterns: deq/growth, 'jacobian/*'; or a Python file that defines STUDY",
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="MINUTES",
        help='start nothing after this ("not run"); a training then stops, is saved and resumes',
    )
    parser.add_argument(
        "--only",
        type=str,
        nargs="+",
        default=[],
        metavar="FACTOR=VALUE",
        help="only the points with these factors, or patterns: seed=0 'cell=trans*'",
    )
    parser.add_argument("--out", type=str, help=f"folder for tables and figures (default: {OUT})")
    parser.add_argument(
        "--runs", type=str, default=RUNS, help="folder for the trainings that studies share"
    )
    parser.add_argument(
        "--data-dir",
        type=str,
        help="folder to search for data sets before $EQUILIBRIA_DATA and downloading",
    )
    parser.add_argument(
        "--scale",
        type=Literal["cpu", "gpu"],
        default="cpu",
        help="size of the recipes: minutes on two CPU cores (default), or for one GPU; gpu writes "
        f"to its own folder, {OUT}/gpu",
    )
    parser.add_argument("--threads", type=int, help="torch threads on the CPU (default: torch's)")
    parser.add_argument(
        "--stale",
        action="store_true",
        help="run nothing; list the rows that are older than the code that produced them",
    )
    return parser


def _out(arguments: Any) -> Path:
    """The folder for tables and pictures."""
    return Path(arguments.out or (f"{OUT}/gpu" if arguments.scale == "gpu" else OUT))


@dataclass(frozen=True)
class _Session:
    """What all studies of one command share."""

    store: Any
    out: Path
    console: Console
    scale: Scale
    deadline: float | None
    only: Sequence[str]

    @classmethod
    def start(cls, arguments: Any, command: str, console: Console) -> _Session:
        import torch

        from equilibria.experiments.training import Store

        if arguments.threads is not None:
            torch.set_num_threads(arguments.threads)
        gpu = arguments.scale == "gpu"
        if gpu and not torch.cuda.is_available():
            raise UserError("--scale gpu needs a CUDA device, and torch finds none here")
        budget = arguments.budget
        return cls(
            store=Store(
                Path(arguments.runs),
                console,
                Path(arguments.data_dir) if arguments.data_dir else None,
                command,
            ),
            out=_out(arguments),
            console=console,
            scale=arguments.scale,
            deadline=None if budget is None else time.monotonic() + 60 * budget,
            only=arguments.only,
        )

    def reproduce(self, names: Sequence[str]) -> None:
        """Run the studies one after the other and show each."""
        from equilibria.experiments import catalogue
        from equilibria.experiments.pages import picture, rendered
        from equilibria.experiments.results import ResultsError
        from equilibria.experiments.runner import collect, execute

        chosen = self._chosen(names)
        failed: list[str] = []
        for name in names:
            study, path = catalogue.find(name), self.out / f"{catalogue.rows_of(name)}.csv"
            try:
                outcome = execute(
                    study,
                    path=path,
                    store=self.store,
                    console=self.console,
                    scale=self.scale,
                    deadline=self.deadline,
                    only=chosen,
                    device="cuda" if self.scale == "gpu" else "cpu",
                )
                data = collect(study, path, self.scale)
                page = rendered(study, data)
            except ResultsError as error:
                raise UserError(str(error)) from None
            drawing = self.out / f"{catalogue.file_of(name)}.svg"
            if data.points["done"].any():
                picture(page, drawing)
            self._show(page, outcome.missing, [path, drawing])
            failed += [f"{name} {label}" for label in outcome.failed]
            if outcome.stopped:
                raise KeyboardInterrupt
        if failed:
            raise UserError(
                f"failed: {'; '.join(failed)}; the tracebacks are in "
                f"{self.store.folder / 'errors'}, and the same command retries them"
            )

    def _chosen(self, names: Sequence[str]) -> Callable[[Point], bool]:
        """Which points are to be run; an error where no study has one of them."""
        from equilibria.experiments import catalogue
        from equilibria.experiments.runner import check

        def fits(point: Point, pattern: str) -> bool:
            return any(
                fnmatch.fnmatch(f"{name}={value}", pattern) for name, value in point.factors.items()
            )

        points = [p for name in names for p in check(catalogue.find(name), self.scale)]
        for pattern in self.only:
            if not any(fits(point, pattern) for point in points):
                known = sorted({f"{k}={v}" for p in points for k, v in p.factors.items()})
                raise UserError(f"--only: no point has '{pattern}'{nearest(pattern, known)}")
        return lambda point: all(fits(point, pattern) for pattern in self.only)

    def _show(self, page: Page, missing: Mapping[str, str], paths: Sequence[Path]) -> None:
        """Print the tables, why each missing point is missing, and the files."""
        for grid in page.grids:
            print_grid(grid, self.console)
        for label, reason in missing.items():
            if self.deadline is None or time.monotonic() < self.deadline or "budget" not in reason:
                self._say(f"not run: {label}: {reason}")
        spent = sum("budget" in each and "older" not in each for each in missing.values())
        if spent:
            self._say(f"{spent} points were not run in this budget; the same command continues")
        written = [str(path) for path in paths if path.exists()]
        where = " and ".join(written)
        self._say(f"Written to {where}." if written else "Nothing has been measured yet.")

    def _say(self, words: str) -> None:
        self.console.print(words, soft_wrap=True, markup=False, highlight=False)


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table."""
    from equilibria.experiments.views import text

    table = RichTable(title=grid.title, title_justify="left", caption_justify="left")
    for place, column in enumerate(grid.columns):
        table.add_column(column, justify="right" if place and column else "left")
    for row in grid.rows:
        table.add_row(*map(text, row))
    console.print(table)


def _console() -> Console:
    """The terminal; wide enough for the tables where the output goes into a file."""
    console = Console()
    return console if console.is_terminal else Console(width=190)


def _named(patterns: Sequence[str], known: Sequence[str], folder: str) -> list[str]:
    """The names that match a pattern, in their own order, then the user's files."""
    files = [pattern for pattern in patterns if pattern.endswith(".py")]
    for file in files:
        if not Path(file).is_file():
            raise UserError(f"there is no file {file}")
    whole = [p if "/" in p or not folder else f"{folder}/{p}" for p in patterns if p not in files]
    for pattern in whole:
        if not fnmatch.filter(known, pattern):
            raise UserError(f"there is no study '{pattern}'{nearest(pattern, known)}")
    return [n for n in known if any(fnmatch.fnmatch(n, p) for p in whole)] + files


def _list(console: Console, command: str, names: Sequence[str], scale: Scale) -> None:
    """Print all studies: paper, item, what they show and how long they take."""
    from equilibria.experiments import catalogue

    grid = RichTable()
    grid.add_column("study", no_wrap=True)
    grid.add_column("minutes", justify="right", no_wrap=True)
    grid.add_column("paper")
    grid.add_column("what it shows", ratio=1)
    every: dict[int, float] = {}
    for name in names:
        study = catalogue.find(name)
        points = study.points(scale)
        trainings = {hash(repr(each)): each for p in points for each in p.runs.values()}
        own = sum(point.minutes for point in points)
        minutes = own + sum(each.minutes for each in trainings.values())
        every |= {key: each.minutes for key, each in trainings.items()} | {hash(name): own}
        paper = f"{study.paper}, {study.item}" if study.paper else ""
        grid.add_row(name, f"{minutes:.0f}", paper, study.description)
    console.print(grid)
    where = "one GPU" if scale == "gpu" else "two CPU cores"
    console.print(
        f"Estimates for {where}; {sum(every.values()):.0f} minutes for all of them, as a training "
        f"that several studies share is run once.\nRun one with: equilibria {command} NAME "
        "--budget MINUTES",
        soft_wrap=True,
    )


def _stale(console: Console, names: Sequence[str], out: Path, scale: Scale) -> None:
    """Print, for each study, how many points are older than the last change below it."""
    from equilibria.experiments import catalogue
    from equilibria.experiments.runner import collect
    from equilibria.experiments.stale import verdicts

    grid = RichTable()
    for heading in ("study", "points", "measured", "current", "stale", "unknown"):
        grid.add_column(heading, justify="left" if heading == "study" else "right", no_wrap=True)
    grid.add_column("stale points")
    for name in names:
        data = collect(catalogue.find(name), out / f"{catalogue.rows_of(name)}.csv", scale)
        done = data.points[data.points["done"]]
        found = verdicts(done, catalogue.source_of(name)) if len(done) else []
        labels = [
            " ".join(str(row[c]) for c in data.factors if row[c] == row[c])
            for row, verdict in zip(done.to_dict("records"), found, strict=True)
            if verdict == "stale"
        ]
        shown = ", ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "")
        counts = [str(found.count(each)) for each in ("current", "stale", "unknown")]
        grid.add_row(name, str(len(data.points)), str(len(done)), *counts, shown)
    console.print(grid)
