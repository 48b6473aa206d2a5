"""Measure the solvers beside torchdeq's and SciPy's."""

from __future__ import annotations

import fnmatch
import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from equilibria.cli.parser import Parser, UserError
from equilibria.train import files
from equilibria.train.config import nearest

MODES = ("eager", "compiled", "graphs")
SUBJECTS = {
    "solvers": "forward solvers, problem by problem",
    "adjoints": "gradients: cosine and error against the exact one, time, memory",
    "training": "training steps with an exact gradient",
}

HELP = """usage: equilibria bench SUBJECT ...

Measure equilibria beside torchdeq and SciPy: same problems, same tolerance, in turns; every answer
is measured anew, and one that missed the tolerance is marked and not timed.

subjects:
{subjects}

equilibria bench SUBJECT --help tells its options."""


def main(argv: Sequence[str]) -> None:
    """Run `equilibria bench` with the words `argv`."""
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(HELP.format(subjects="\n".join(f"  {n:10}{t}" for n, t in SUBJECTS.items())))
        raise SystemExit(0)  # as a parser ends that has shown its help
    subject, *rest = words
    if subject not in SUBJECTS:
        raise UserError(f"there is no subject '{subject}'" + nearest(subject, SUBJECTS))
    {"solvers": solvers, "adjoints": adjoints, "training": training}[subject](rest)


def _parser(subject: str, description: str | None) -> Parser:
    """The options that all subjects share."""
    parser = Parser(f"bench {subject}", description)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--dtype", default="float32", choices=["float32", "float64"], help="of the state"
    )
    parser.add_argument(
        "--problems",
        nargs="+",
        default=["*"],
        metavar="NAME",
        help="names, or patterns: tanh-*",
    )
    parser.add_argument(
        "--turns", type=int, default=40, help="of each, at most; fewer where they take long"
    )
    parser.add_argument("--threads", type=int, help="of torch on the CPU; torch's own if none")
    parser.add_argument(
        "--budget", type=float, metavar="MINUTES", help='what begins later is "not run"'
    )
    parser.add_argument("--out", default="results", help="folder for the files")
    parser.add_argument(
        "--fresh", action="store_true", help="measure again what an interrupted run had finished"
    )
    return parser


def solvers(argv: Sequence[str]) -> None:
    """`equilibria bench solvers`."""
    parser = _parser(
        "solvers",
        "Forward solvers beside torchdeq's and SciPy's. --turns 0 counts evaluations and "
        "operations and times nothing.",
    )
    parser.add_argument("--rtol", type=float, default=1e-4, help="relative tolerance")
    parser.add_argument(
        "--solvers", nargs="+", default=["*"], metavar="NAME", help="names, or patterns like torch*"
    )
    parser.add_argument(
        "--mode", choices=MODES, default="eager", help="how f is run; graphs: as a CUDA graph"
    )
    parser.add_argument(
        "--autocast",
        choices=["bfloat16", "float16"],
        help="precision inside f",
    )
    arguments = parser.parse_args(list(argv))
    _prepare(arguments)

    import torch

    from equilibria.bench import draw, summary
    from equilibria.bench.contestants import contestants, require_peers
    from equilibria.bench.modes import in_mode
    from equilibria.bench.problems import PROBLEMS, build, usual
    from equilibria.bench.solvers import Report, measure

    every = {each.name: each for each in contestants(arguments.device)}
    names = usual(arguments.device)
    if arguments.problems != ["*"]:
        names = _matching(arguments.problems, PROBLEMS, "problem")
    if arguments.mode == "graphs" and not arguments.device.startswith("cuda"):
        raise UserError("--mode graphs needs a GPU: give --device cuda as well")
    if arguments.solvers == ["*"]:
        require_peers("torchdeq", "scipy")
    who = [every[name] for name in _matching(arguments.solvers, every, "solver")]
    dtype = getattr(torch, arguments.dtype)
    inside = None if arguments.autocast is None else getattr(torch, arguments.autocast)

    def one(name: str, say: Callable[[str], None]) -> dict[str, object]:
        say(f"{name}: making it")
        problem = build(name, device=arguments.device, dtype=dtype)
        problem = in_mode(problem, arguments.mode, inside)
        return measure(problem, who, rtol=arguments.rtol, turns=arguments.turns, say=say).json()

    console = _console()
    settings = _settings(arguments, "rtol", "turns", "mode", "autocast")
    settings["solvers"] = [each.name for each in who]

    def show(done: Mapping[str, Any]) -> None:
        print_table(summary.problem_table(Report.of(dict(done))), console)

    done, missing = _run("solvers", argv, names, one, settings, arguments, console, show)
    reports = [Report.of(each) for each in done]
    tables = [
        summary.summary(reports),
        summary.ratios(reports),
        summary.convergence(reports),
        summary.costs(reports),
        summary.details(reports),
    ]
    for table in tables[:-1]:
        print_table(table, console)
    note = (
        f"One solve of the whole batch without gradients to a relative residual of "
        f"{arguments.rtol:g}, {arguments.dtype}, {torch.get_num_threads()} threads; medians of at "
        f"most {arguments.turns} turns. No solver of ours gives up on slow samples (patience=None)."
    )
    path = _write("solvers", argv, tables, note, settings, done, missing, arguments)
    drawing = path.with_suffix(".svg")
    draw.solvers(reports, drawing)
    console.print(f"Written to {path} and {drawing}.", soft_wrap=True, markup=False)


def adjoints(argv: Sequence[str]) -> None:
    """`equilibria bench adjoints`."""
    parser = _parser(
        "adjoints",
        "The gradient by every adjoint, beside the exact one in float64, at spectral radii from "
        "0.5 to 0.95. --turns 0 measures errors and memory and times nothing.",
    )
    parser.add_argument("--rtol", type=float, default=1e-4, help="forward and backward")
    parser.add_argument(
        "--adjoints", nargs="+", default=["*"], metavar="NAME", help="names or patterns"
    )
    arguments = parser.parse_args(list(argv))
    _prepare(arguments)
    _gradients("adjoints", argv, arguments, arguments.adjoints)


def training(argv: Sequence[str]) -> None:
    """`equilibria bench training`."""
    parser = _parser(
        "training",
        "A training step, forward and backward with an exact gradient, beside every exact setting "
        "of torchdeq.",
    )
    parser.add_argument("--rtol", type=float, default=1e-3, help="forward and backward")
    parser.add_argument(
        "--steps", nargs="+", default=["*"], metavar="NAME", help="names or patterns"
    )
    arguments = parser.parse_args(list(argv))
    _prepare(arguments)
    _gradients("training", argv, arguments, arguments.steps)


def _gradients(subject: str, argv: Sequence[str], arguments: Any, patterns: Sequence[str]) -> None:
    import torch

    from equilibria.bench import cells, draw, gradient_tables, gradients
    from equilibria.bench import methods as ways
    from equilibria.bench.contestants import require_peers

    if subject == "adjoints":
        methods, cases, what = ways.adjoints(), cells.RADII, "adjoint"
    else:
        methods, cases, what = ways.exact(), cells.WIDTHS, "step"
    by_name = {each.name: each for each in methods}
    names = _matching(arguments.problems, cases, "problem")
    if patterns == ["*"]:
        require_peers("torchdeq")
    who = [by_name[name] for name in _matching(patterns, by_name, what)]
    dtype, rtol = getattr(torch, arguments.dtype), arguments.rtol

    def one(name: str, say: Callable[[str], None]) -> dict[str, object]:
        say(f"{name}: the exact gradient")
        case = cases[name](name, device=arguments.device, dtype=dtype)
        memory = subject == "adjoints"
        report = gradients.measure(
            case, who, rtol=rtol, turns=arguments.turns, memory=memory, say=say
        )
        return report.json()

    console = _console()
    table = (
        gradient_tables.adjoint_table if subject == "adjoints" else gradient_tables.training_table
    )

    def show(done: Mapping[str, Any]) -> None:
        print_table(table(gradients.GradientReport.of(dict(done)), rtol), console)

    settings = _settings(arguments, "rtol", "turns") | {"methods": [each.name for each in who]}
    done, missing = _run(subject, argv, names, one, settings, arguments, console, show)
    reports = [gradients.GradientReport.of(each) for each in done]
    if subject == "adjoints":
        tables = gradient_tables.adjoints(reports, rtol)
    else:
        tables = gradient_tables.trainings(reports, rtol)
    for each in tables[:-1]:
        print_table(each, console)
    note = (
        f"Relative tolerance {rtol:g}, forward and backward, {arguments.dtype}, "
        f"{torch.get_num_threads()} threads; medians of at most {arguments.turns} turns."
    )
    path = _write(subject, argv, tables, note, settings, done, missing, arguments)
    drawing = path.with_suffix(".svg")
    if subject == "adjoints":
        draw.adjoints(reports, drawing)
    else:
        draw.training(reports, drawing, rtol)
    console.print(f"Written to {path} and {drawing}.", soft_wrap=True, markup=False)


# --- what the subjects share ---------------------------------------------------------------------


def _prepare(arguments: Any) -> None:
    """Refuse what cannot be, and set torch up."""
    import torch

    for option, least in (("turns", 0), ("threads", 1)):
        value = getattr(arguments, option)
        if value is not None and value < least:
            raise UserError(f"--{option} must be {least} or more; got {value}")
    for option in ("rtol", "budget"):
        value = getattr(arguments, option, None)
        if value is not None and value <= 0:
            raise UserError(f"--{option} must be above 0; got {value:g}")
    try:
        device = torch.device(arguments.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {arguments.device} can't be used here: {reason}") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device must be cpu or cuda; got {arguments.device}")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)


def _matching(patterns: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    """The known names that one of the patterns names, in their own order."""
    names = list(known)
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"there is no {what} '{pattern}'{nearest(pattern, names)}")
    return [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)]


def _settings(arguments: Any, *options: str) -> dict[str, Any]:
    import torch

    own = {option: getattr(arguments, option) for option in options}
    threads = torch.get_num_threads()
    return {"device": arguments.device, "dtype": arguments.dtype, "threads": threads, **own}


def _run(
    subject: str,
    argv: Sequence[str],
    names: Sequence[str],
    one: Callable[[str, Callable[[str], None]], dict[str, object]],
    settings: Mapping[str, Any],
    arguments: Any,
    console: Console,
    show: Callable[[Mapping[str, Any]], None],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure one after the other, keep what is done in a file, stop when the budget is spent.

    Returns:
        What was measured, and the names that were not.
    """
    from equilibria.bench import record

    began = time.monotonic()
    folder = Path(arguments.out)
    kept = folder / f".{subject}.unfinished.json"  # of the last run that did not end
    key = record.finite({**settings, "source": record.source_digest()})
    done: dict[str, dict[str, Any]] = {}
    if kept.exists() and not arguments.fresh:
        before = json.loads(kept.read_text())
        if before["key"] == key:
            done = {name: before["done"][name] for name in names if name in before["done"]}
            if done:
                console.print(f"Going on after {len(done)} of {len(names)}; --fresh begins anew.")
    missing: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(subject, total=len(names), completed=len(done))
        for name in names:
            if name in done:
                show(done[name])
                continue
            if arguments.budget and time.monotonic() - began > 60 * arguments.budget:
                missing.append(name)
                continue
            done[name] = one(name, lambda text: progress.update(task, description=text))
            show(done[name])
            progress.advance(task)
            folder.mkdir(parents=True, exist_ok=True)
            files.write_json(kept, record.finite({"key": key, "done": done}))
    if missing:
        console.print(f"Not run, the budget is spent: {', '.join(missing)}", soft_wrap=True)
    elif kept.exists():
        kept.unlink()
    return [done[name] for name in names if name in done], missing


def _write(
    subject: str,
    argv: Sequence[str],
    tables: Sequence[Any],
    note: str,
    settings: Mapping[str, Any],
    done: Sequence[Mapping[str, Any]],
    missing: Sequence[str],
    arguments: Any,
) -> Path:
    from equilibria.bench import record

    if missing:
        note += f" Not run: {', '.join(missing)}."
    other = [arguments.device, arguments.dtype, getattr(arguments, "mode", "eager")]
    usual = ("cpu", "float32", "eager")
    words = [word for word, common in zip(other, usual, strict=True) if word != common]
    if getattr(arguments, "autocast", None):
        words.append(arguments.autocast)
    return record.write(
        Path(arguments.out),
        "-".join([subject, *words]).replace(":", ""),
        command=shlex.join(["equilibria", "bench", subject, *argv]),
        tables=tables,
        note=note,
        peers=("torchdeq", "scipy"),
        settings=dict(settings),
        missing=list(missing),
        measured=list(done),
    )


def _console() -> Console:
    """The terminal; wide enough for the tables where the output goes into a file."""
    console = Console()
    return console if console.is_terminal else Console(width=190)


def print_table(table: Any, console: Console) -> None:
    """A table of figures on the screen."""
    grid = Grid(title=table.title, title_justify="left", caption_justify="left")
    for i, column in enumerate(table.columns):
        grid.add_column(column, justify="right" if i and column else "left")
    for row in table.rows:
        grid.add_row(*map(text, row))
    console.print(grid)


def text(cell: object) -> str:
    """A figure with three digits, a dash for none."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 1000 else f"{cell:.0f}"
    return str(cell)
