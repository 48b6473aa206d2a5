"""Run an experiment of the papers, or, without a name, list them all.

What is done is kept: the same command goes on where it was interrupted or its budget was spent.
Tables and a figure are drawn from what is there, the papers' figures beside ours; what was not run
says so. --budget 0 draws and runs nothing.
"""

from __future__ import annotations

import fnmatch
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from equilibria.cli.parser import Parser, UserError
from equilibria.train.config import nearest

OUT = "results/reproduce"


def main(argv: Sequence[str]) -> None:
    """Run `equilibria reproduce` with the words `argv`."""
    parser = Parser("reproduce", __doc__)
    parser.add_argument(
        "names",
        type=str,
        nargs="*",
        metavar="NAME",
        help="experiments, or patterns: deq/growth, jacobian/*; without one all are listed",
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="MINUTES",
        help='what would begin later is "not run"; a training stops there and goes on another time',
    )
    parser.add_argument(
        "--out", type=str, help=f"folder for runs, tables and figures (default: {OUT})"
    )
    parser.add_argument(
        "--data-dir",
        type=str,
        help="folder to look for data sets in, before $EQUILIBRIA_DATA and a download",
    )
    parser.add_argument(
        "--scale",
        type=str,
        choices=["cpu", "gpu"],
        default="cpu",
        help="size of the recipes: minutes on two CPU cores (default), or one GPU; gpu has a "
        f"folder of its own ({OUT}-gpu), and takes the CPU's recipe where there is no -gpu one",
    )
    parser.add_argument(
        "--cases", type=str, nargs="+", metavar="CASE", help="only these, or patterns: ptb-*-0"
    )
    parser.add_argument("--threads", type=int, help="of torch on the CPU; torch's own if none")
    arguments = parser.parse_args(list(argv))
    if arguments.budget is not None and not arguments.budget >= 0:
        raise UserError(f"--budget must be 0 or more minutes; got {arguments.budget:g}")
    if arguments.threads is not None and arguments.threads < 1:
        raise UserError(f"--threads must be 1 or more; got {arguments.threads}")

    from equilibria.experiments.registry import EXPERIMENTS

    console = Console()
    console = console if console.is_terminal else Console(width=190)
    names = _matching(arguments.names, list(EXPERIMENTS), "experiment")
    if not names:
        _list(console, arguments.scale)
        return

    import torch

    from equilibria.experiments.case import CaseError
    from equilibria.experiments.runner import Outcome, execute, publish

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    chosen = [EXPERIMENTS[name] for name in names]
    patterns = arguments.cases or ["*"]
    known = [case.key for each in chosen for case in each.cases(arguments.scale)]
    keys = set(_matching(patterns, list(dict.fromkeys(known)), "case"))
    out = Path(arguments.out or OUT + ("" if arguments.scale == "cpu" else f"-{arguments.scale}"))
    command = shlex.join(["equilibria", "reproduce", *argv])
    began = time.monotonic()
    deadline = None if arguments.budget is None else began + 60 * arguments.budget
    outcomes: dict[str, Outcome] = {}
    for experiment in chosen:
        try:
            outcome = execute(
                experiment,
                out=out,
                console=console,
                command=command,
                scale=arguments.scale,
                data_dir=Path(arguments.data_dir) if arguments.data_dir else None,
                deadline=deadline,
                only=keys.__contains__,
            )
        except CaseError as error:
            raise UserError(str(error)) from None
        outcomes[experiment.name] = outcome
        _show(console, publish(experiment, outcome, out, command), outcome.missing)
        if outcome.stopped:
            raise KeyboardInterrupt
    failed = [f"{name}: {key}" for name, each in outcomes.items() for key in each.failed]
    if failed:
        raise UserError(
            f"failed: {', '.join(failed)}; the error.txt in the folder of each below {out} says "
            "where; the same command tries them again"
        )


def _matching(patterns: Sequence[str], names: Sequence[str], what: str) -> list[str]:
    """The names that one of the patterns names, in their own order."""
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"there is no {what} '{pattern}'{nearest(pattern, names)}")
    return [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)]


def _list(console: Console, scale: str) -> None:
    """Print all experiments: paper, figure, what they show and how long they take."""
    from equilibria.experiments.registry import EXPERIMENTS

    grid = Grid("experiment", "paper", "there", "what it shows", title_justify="left")
    grid.add_column("minutes", justify="right")
    grid.add_column("of these trainings that several share", justify="right")
    every: dict[str, float] = {}
    for name, experiment in EXPERIMENTS.items():
        cases = experiment.cases("gpu" if scale == "gpu" else "cpu")
        every |= {case.key if case.shared else f"{name} {case.key}": case.minutes for case in cases}
        whole = sum(case.minutes for case in cases)
        shared = sum(case.minutes for case in cases if case.shared)
        grid.add_row(
            name,
            experiment.paper,
            experiment.subject,
            experiment.description,
            f"{whole:.0f}",
            f"{shared:.0f}",
        )
    console.print(grid)
    where = "one GPU" if scale == "gpu" else "two CPU cores"
    console.print(
        f"Estimates for {where}; all together {sum(every.values()):.0f} minutes, since a training "
        "that several experiments share is run once.\n"
        "Run one with: equilibria reproduce NAME --budget MINUTES"
    )


def _show(
    console: Console, published: tuple[Sequence[Any], list[Path]], missing: Mapping[str, str]
) -> None:
    """Print the tables, why each missing case is missing, and the files."""
    from equilibria.cli.bench import print_table

    tables, paths = published
    for table in tables:
        print_table(table, console)
    for key, reason in missing.items():
        console.print(f"not run: {key}: {reason}", soft_wrap=True, markup=False, highlight=False)
    where = " and ".join(map(str, paths))
    console.print(f"Written to {where}.", soft_wrap=True, markup=False, highlight=False)
