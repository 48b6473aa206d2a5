"""Measure whether a run uses its depth: how good its answers are when they are read from the
iterate after 1, 2, 3, 4, 6, 8, 12, ... evaluations, up to the end of the solves; how good they are
when solves start from zeros, from noise, from the negated solution and from the solution of another
sample; how evaluations grow with the difficulty of an instance, if the task measures it; and after
how many evaluations an answer is right for good, compared with how many a solve takes. Ends in one
sentence for each split. "Same answer" is the share of samples whose state is within 1 % of the one
from the usual start. The figures are written to depth.json in the run folder after each split, with
a plot in depth.svg; `equilibria report` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean, median_low
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from equilibria import files
from equilibria.metric import Metric
from equilibria.run import evaluation, run
from equilibria.run.cli.options import add_solver, solve_by
from equilibria.run.cli.output import Output, say
from equilibria.run.cli.parser import Parser, UserError, check_least
from equilibria.run.cli.status import DONE
from equilibria.run.data import storage
from equilibria.run.depth import OTHER, DepthReport, measure_depth
from equilibria.run.models import EquilibriumModel
from equilibria.run.records import Depths, SplitDepth
from equilibria.run.report.depth import END, panels, solves
from equilibria.run.report.svg import picture
from equilibria.run.weights import checksum
from equilibria.words import plural

FILE, FIGURE = "depth.json", "depth.svg"


def main(argv: Sequence[str]) -> int:
    """Run `equilibria depth` with the words `argv` and return the exit status."""
    parser = Parser("depth", __doc__)
    parser.add_argument("run", type=Path, help="run folder, for example runs/parity")
    parser.add_argument(
        "--splits",
        nargs="+",
        metavar="SPLIT",
        help="splits to measure on (default: test, and those of larger instances)",
    )
    parser.add_argument(
        "--samples", type=int, default=500, help="samples of each split, at most (default: 500)"
    )
    parser.add_argument(
        "--max-evals", type=int, help="most evaluations of a solve (default: the recipe's)"
    )
    add_solver(parser)
    parser.add_data_dir()
    parser.add_device()
    arguments = parser.parse_args(list(argv))
    check_least(arguments, samples=1, max_evals=1)
    run.Folder(arguments.run).check_writable()
    loaded = run.load(arguments.run, data_dir=arguments.data_dir)
    model, task = loaded.model, loaded.data
    if not isinstance(model, EquilibriumModel) or not task.early or task.streams:
        raise UserError(
            f"{loaded.folder} is a run of {type(loaded.recipe.model).__name__} on {task.source}: "
            "depth is measured of networks that solve for one equilibrium a sample"
        )
    if model.deq.coupled:
        raise UserError(
            f"{loaded.folder} is a run of {type(loaded.recipe.model).__name__}, which solves the "
            "rows of a graph as one sample: depth is measured of networks whose samples are "
            "solved one by one, such as those of `equilibria train parity`"
        )
    splits = arguments.splits or [each for each in task.splits if each.startswith("test")]
    if unknown := [each for each in splits if each not in task.splits]:
        raise UserError(f"--splits must be of {', '.join(task.splits)}; got {unknown[0]}")
    changed: dict[str, Any] = {**solve_by(arguments.solver, loaded)}
    accelerator = evaluation.accelerator(loaded.recipe.precision, arguments.device)
    model = model.to(accelerator.device).eval()
    if arguments.max_evals is not None:
        usual = model.deq.eval_solver or model.deq.solver
        model.deq.eval_solver = replace(usual, max_evals=arguments.max_evals)
        changed["max_evals"] = arguments.max_evals
    console = Output(quiet=arguments.quiet)
    waiting = Output(stderr=True, quiet=arguments.quiet)
    content = {"weights": checksum(run.Folder(loaded.folder).weights), **changed}
    path = loaded.folder / FILE
    stored = _read_others(path, content)
    reports: list[DepthReport] = []
    size = min(loaded.recipe.eval_batch_size, arguments.samples)
    for split in splits:
        with waiting.status(f"Solving {split} ..."):
            options: dict[str, Any] = {"split": split, "samples": arguments.samples}
            reports.append(measure_depth(model, task, accelerator, **options, batch_size=size))
        show(reports[-1], task.primary, console)
        stored[split] = reports[-1].json(task.primary)  # at once: an interruption loses nothing
        found = [stored[each] for each in task.splits if each in stored]
        files.write_text(loaded.folder / FIGURE, picture(panels(found, task.primary)))
        files.write_json(path, {**content, "splits": found, "metric": task.primary.describe()})
    if len(reports) > 1:
        ends = "; ".join(
            f"{each.split} {task.primary.format(each.figure)} in {mean(each.evals):.0f}"
            for each in reports
        )
        say(console, f"At the end of the solves, and evaluations on average: {ends}.", "bold")
    said = f"Written to {path}, with a plot in {FIGURE}. Next: equilibria report {loaded.folder}"
    console.finish(said, path)
    return DONE


def _read_others(path: Path, content: dict[str, Any]) -> dict[str, SplitDepth]:
    """What an earlier command has measured of the same weights in the same way, by split."""
    with suppress(OSError, ValueError):  # it is measured again
        known = cast("dict[str, Any]", storage.read(path, Depths, spelt=True))
        same = known.keys() - {"splits", "metric"} == content.keys()
        if same and all(known[name] == value for name, value in content.items()):
            return {each["split"]: each for each in known["splits"]}
    return {}


def show(report: DepthReport, metric: Metric, console: Console) -> None:
    """Print what was measured on a split."""
    found = solves([report.json(metric)], metric)
    table = Table(*found.head, title=f"{plural(report.samples, 'sample')} of {report.split}")
    for row in found.rows:
        table.add_row(*row, style="bold" if row[0] == END else None)
    console.print(table)
    if report.right_after:
        after, end = map(median_low, (report.right_after, report.right_evals))
        say(
            console,
            f"Right for good after {after} evaluations, at the end of the solve after {end} "
            "(medians of the answers that are right).",
        )
    if OTHER not in report.starts:
        say(console, f"Batches of one sample: no solve starts from {OTHER}.")
    if report.correlation is not None:
        words = f"Rank correlation of evaluations and difficulty: {report.correlation:.2f}."
        say(console, words)
    sentence = report.describe(metric)
    say(console, f"{report.split}: {sentence}.", "bold")
