"""Measure the tables and figures of the papers again, or, without a name, list the studies.

Results are kept: the same command continues where it was interrupted or its budget was spent.
Tables and a figure are drawn from the existing results, with the papers' figures next to ours;
points not run are marked. --budget 0 only draws.
"""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from equilibria.run.cli.output import Output
from equilibria.run.cli.parser import Parser, UserError, check_least
from equilibria.words import nearest

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
    check_least(arguments, budget=0, threads=1)

    from equilibria.run.studies import catalog  # what it imports takes longer than --help

    console = Output(quiet=arguments.quiet and not arguments.stale, width=WIDTH)
    known = [name for name in catalog.names() if name.startswith(folder)]
    if not known and not all(name.endswith(".py") for name in arguments.names or [""]):
        raise UserError(catalog.NO_PAPERS)
    names = _match_names(arguments.names, known, folder)
    if arguments.own and (arguments.stale or not names):
        raise UserError("--own expects the name of a benchmark: bench solvers --own my:Aitken")
    if arguments.quiet and not (names or arguments.stale):
        print("\n".join(known))
        return

    from equilibria.run.cli import session

    if not (names or arguments.stale):
        session.list_studies(console, command, known, arguments.scale)
        return
    words = "" if arguments.stale else shlex.join(["equilibria", command, *argv])
    started = session.start(arguments, _out(arguments), words, console)
    if arguments.stale:
        started.list_stale(names or known)
    else:
        started.reproduce(names)


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
