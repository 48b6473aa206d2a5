"""Measure the tables and figures of the papers again, or, without a name, list the studies.

Results are kept: the same command continues where it was interrupted or its budget was spent.
Tables and a figure are drawn from the existing results, with the papers' figures next to ours;
points not run are marked. --budget 0 only draws.
"""

from __future__ import annotations

import fnmatch
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from equilibria.run.cli.output import Output, fit_table
from equilibria.run.cli.parser import Parser, Stopped, UserError
from equilibria.words import nearest, plural

if TYPE_CHECKING:
    from equilibria.run.studies.pages import Page
    from equilibria.run.studies.runner import Missing
    from equilibria.run.studies.study import Point, Scale, Study
    from equilibria.run.studies.views import Grid

OUT, RUNS, OWN = "results", "runs/studies", "runs/own"

WIDTH = 100
"""Columns of the tables where the output is no terminal."""


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

    from equilibria.run.cli import reproduce_lists
    from equilibria.run.studies import catalogue

    console = Output(quiet=arguments.quiet and not arguments.stale, width=WIDTH)
    known = [name for name in catalogue.names() if name.startswith(folder)]
    if not known and not all(name.endswith(".py") for name in arguments.names or [""]):
        raise UserError(catalogue.NO_PAPERS)
    names = _match_names(arguments.names, known, folder)
    if arguments.own and (arguments.stale or not names):
        raise UserError("--own expects the name of a benchmark: bench solvers --own my:Aitken")
    if arguments.quiet and not (names or arguments.stale):
        print("\n".join(known))
        return
    if arguments.stale:
        session = _Session.start(arguments, "", console)
        reproduce_lists.stale(names or known, session.out, session.scale, console, session.identity)
    elif names:
        words = shlex.join(["equilibria", command, *argv])
        _Session.start(arguments, words, console).reproduce(names)
    else:
        reproduce_lists.studies(console, command, known, arguments.scale)


def _parser(command: str, description: str | None) -> Parser:
    parser = Parser(
        command, description, quiet="print only errors, and where results are; or names of studies"
    )
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
    parser.add_argument(
        "--own",
        type=str,
        metavar="MODULE:CLASS",
        help="a solver of yours joins bench/solvers, an adjoint or linear solver bench/adjoints, "
        f"with its defaults; written to a folder of its own, {OWN}/MODULE.CLASS",
    )
    parser.add_argument("--out", type=str, help=f"folder for tables and figures (default: {OUT})")
    parser.add_argument(
        "--runs", type=str, default=RUNS, help="folder for the trainings that studies share"
    )
    parser.add_data_dir()
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
    """The folder for tables and pictures. Rows of a user's own class are no result of ours."""
    usual = OWN if arguments.own else OUT
    folder = Path(arguments.out or (f"{usual}/gpu" if arguments.scale == "gpu" else usual))
    return folder / arguments.own.replace(":", ".") if arguments.own else folder


@dataclass(frozen=True)
class _Session:
    """What all studies of one command share."""

    store: Any
    out: Path
    console: Output
    scale: Scale
    deadline: float | None
    only: Sequence[str]
    own: str | None

    @classmethod
    def start(cls, arguments: Any, command: str, console: Output) -> _Session:
        import torch

        from equilibria.run.studies.training import Store

        if arguments.threads is not None:
            torch.set_num_threads(arguments.threads)
        budget = arguments.budget
        return cls(
            store=Store(
                Path(arguments.runs),
                console,
                arguments.data_dir,
                command,
            ),
            out=_out(arguments),
            console=console,
            scale=arguments.scale,
            deadline=None if budget is None else time.monotonic() + 60 * budget,
            only=arguments.only,
            own=arguments.own,
        )

    def reproduce(self, names: Sequence[str]) -> None:
        """Run the studies one after the other and show each."""
        import torch

        from equilibria.run.studies import catalogue
        from equilibria.run.studies.pages import count_earlier, picture, render
        from equilibria.run.studies.results import ResultsError
        from equilibria.run.studies.runner import collect, execute

        if self.scale == "gpu" and not torch.cuda.is_available():
            raise UserError("--scale gpu needs a CUDA device, and torch finds none here")
        studies = [self._study(name) for name in names]
        chosen = self._choose(names)
        self._try_out()
        failed: list[str] = []
        for name, study in zip(names, studies, strict=True):
            path = self.out / f"{catalogue.rows_of(name)}.csv"
            try:
                outcome = execute(
                    study,
                    path=path,
                    store=self.store,
                    console=self.console,
                    scale=self.scale,
                    deadline=self.deadline,
                    only=chosen,
                    device=self.device,
                )
                data = collect(study, path, self.scale)
                page = render(study, data)
            except ResultsError as error:
                raise UserError(str(error)) from None
            drawing = self.out / f"{catalogue.file_of(name)}.svg"
            if data.points["done"].any():
                picture(page, drawing)
            self._show(page, count_earlier(data), outcome.missing, [path, drawing])
            failed += [f"{name} {label}" for label in outcome.failed]
            if outcome.stopped:
                raise Stopped("interrupted; run the same command to continue")
        if failed:
            raise UserError(
                f"failed: {'; '.join(failed)}; the tracebacks are in "
                f"{self.store.folder / 'errors'}, and the same command retries them"
            )

    def _study(self, name: str) -> Study:
        """A study, with the user's own class among its contestants."""
        from equilibria.run import plugins
        from equilibria.run.config import as_chosen
        from equilibria.run.studies import catalogue

        study = catalogue.find(name)
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
        from equilibria.run.data import DataError
        from equilibria.run.studies.results import LEGACY
        from equilibria.run.studies.runner import identities_of

        try:
            if recorded == LEGACY:
                return None
            known = identities_of(point, self.store, self.device)
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
        from equilibria.run.studies import catalogue
        from equilibria.run.studies.runner import check

        def fits(point: Point, pattern: str) -> bool:
            return any(
                fnmatch.fnmatch(f"{name}={value}", pattern) for name, value in point.factors.items()
            )

        points = [p for name in names for p in check(catalogue.find(name), self.scale)]
        for pattern in self.only:
            if "=" not in pattern:
                raise UserError(f"--only expects FACTOR=VALUE, such as seed=0; got '{pattern}'")
            if not any(fits(point, pattern) for point in points):
                known = sorted({f"{k}={v}" for p in points for k, v in p.factors.items()})
                raise UserError(f"--only: no point has '{pattern}'{nearest(pattern, known)}")
        return lambda point: all(fits(point, pattern) for pattern in self.only)

    def _show(
        self, page: Page, older: str, missing: Mapping[str, Missing], paths: Sequence[Path]
    ) -> None:
        """Print the tables, which points are older, why others are missing, and the files."""
        from equilibria.run.studies.runner import BEGUN, BUDGET, NOT_REQUESTED

        for grid in page.grids:
            print_grid(grid, self.console)
        if older:
            self._say(f"{older}: its results can differ beyond rounding from this one's.")
        for label, (reason, kept) in missing.items():
            if reason not in (BEGUN, BUDGET, NOT_REQUESTED):
                self._say(f"{'earlier result shown' if kept else 'not run'}: {label}: {reason}")
        late = [each for each in missing.values() if each.reason in (BEGUN, BUDGET)]
        if lacking := sum(not each.kept for each in late):
            points = plural(lacking, "point")
            self._say(f"Not run within this budget: {points}; a larger --budget continues.")
        if kept := sum(each.kept for each in late):
            self._say(
                f"Earlier results are shown for {plural(kept, 'point')}, not checked against the "
                "current study: see --stale."
            )
        written = [str(path) for path in paths if path.exists()]
        if written:
            self.console.finish(f"Written to {' and '.join(written)}.", "\n".join(written))
        else:
            self._say("Nothing has been measured yet.")

    def _say(self, words: str) -> None:
        self.console.print(words, soft_wrap=True, markup=False, highlight=False)


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table."""
    from equilibria.run.studies.views import text

    rows = [list(map(text, row)) for row in grid.rows]
    for table in fit_table(console, grid.title, grid.columns, rows, lead=grid.lead):
        console.print(table)


def _match_names(patterns: Sequence[str], known: Sequence[str], folder: str) -> list[str]:
    """The names that match a pattern, in their own order, then the user's files."""
    files = [pattern for pattern in patterns if pattern.endswith(".py")]
    for file in files:
        if not Path(file).is_file():
            raise UserError(f"there is no file {file}")
    whole = [p if "/" in p or not folder else f"{folder}/{p}" for p in patterns if p not in files]
    for pattern in whole:
        if not fnmatch.filter(known, pattern):
            folders = sorted({f"{name.partition('/')[0]}/*" for name in known})
            raise UserError(
                f"there is no study '{pattern}'"
                f"{nearest(pattern, folders if '*' in pattern else known)}"
            )
    return [n for n in known if any(fnmatch.fnmatch(n, p) for p in whole)] + files
