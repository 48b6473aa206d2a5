"""Evaluate a run: how good it is, how its solves ended, what they cost, and what fewer evaluations
would give: the metrics read out from the state after 1, 2, 3, 5, 8 and 12 of them; or, for a
language model, with solves stopped after 2, 4, 8, 12, 16 and 24. A language model is compared with
an interpolated trigram model of the same text; a network for one's own images with logistic
regression on pixels, and with a small residual network that is trained for as many seconds as the
run would be here. The figures are also written to evaluation.json in the run folder.

With --data the run's model is evaluated on other data, which it sees as its own: with the run's
vocabulary, classes and normalisation. Their figures are written to a file of their own, named
evaluation-other-NAME-CHECKSUM.json. Without it, data that have changed since training are an error.

The exit status is 3 if the loss or the weights are not finite, 1 after an error, and otherwise 0.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console

from equilibria import files
from equilibria.metric import LOSS
from equilibria.run import evaluation, run
from equilibria.run.cli.options import ConfigOptions, ViewOptions, add_solver, options_of, solve_by
from equilibria.run.cli.output import Output, figures_table, fit_table, say
from equilibria.run.cli.parser import Parser, UserError
from equilibria.run.cli.status import DONE, UNHEALTHY
from equilibria.run.folder import place_of
from equilibria.run.models import EquilibriumModel
from equilibria.run.recipe import Recipe
from equilibria.run.tasks import Task
from equilibria.solve import Status
from equilibria.words import percent, plural


def main(argv: Sequence[str]) -> int:
    """Run `equilibria evaluate` with the words `argv` and return the exit status."""
    configs = options_of("evaluate", ConfigOptions)
    viewers = options_of("evaluate", ViewOptions)
    arguments = _parser(configs, viewers).parse_args(list(argv))
    folder = run.Folder(arguments.run)
    folder.check_writable()
    recipe = folder.read_recipe()
    changes = _changes(configs, arguments, recipe)
    loaded = run.load(
        folder.path, data_dir=arguments.data_dir, other=arguments.data, changes=changes
    )
    solver = solve_by(arguments.solver, loaded)
    views = _changes(viewers, arguments, recipe)
    task = loaded.data
    if arguments.budgets is not None:
        _check_budgets(loaded, arguments.budgets)
    if arguments.no_baselines and not type(task).baseline and loaded.other is None:
        raise UserError(
            "--no-baselines is for language models and others that are compared with a baseline: "
            f"{_other(loaded)}"
        )
    if arguments.split not in task.splits:
        raise UserError(f"--split must be one of {', '.join(task.splits)}; got {arguments.split}")
    place = place_of(recipe.task)
    if loaded.other and place and place == place_of(recipe.task.at(arguments.data)):
        warnings.warn(
            f"{place} is what the run was trained on, and has changed: what it has learned from "
            "may be among what is evaluated",
            stacklevel=2,
        )
    accelerator = evaluation.accelerator(loaded.recipe.precision, arguments.device)
    limits = evaluation.BUDGETS if arguments.budgets is None else tuple(arguments.budgets)
    console = Output(quiet=arguments.quiet)
    with console.status("Evaluating ..."):
        result = measure(loaded, accelerator, split=arguments.split, limits=limits, views=views)
    changes = {**changes, **solver, **views}
    wrong = _not_finite(result, loaded)
    status = UNHEALTHY if wrong else DONE
    if not accelerator.is_main_process:
        return status
    if task.baseline and not arguments.no_baselines:
        with console.status(f"Fitting a {task.baseline} ..."):
            try:
                result["baseline"] = evaluation.reference(task, folder, arguments.split)
            except ValueError as error:
                console.print(f"No {task.baseline}: {error}", style="yellow", markup=False)
    if loaded.metrics and "step" in loaded.metrics[-1]:
        result["step"] = loaded.metrics[-1]["step"]
    if loaded.other is not None:
        result["other"] = {"source": loaded.other, "checksum": task.checksum}
    other = None if loaded.other is None else task
    path = folder.evaluation_of(arguments.split, changed=bool(changes), other=other)
    show(result, loaded, console, views)  # first: a full disk takes nothing from what was measured
    files.write_json(path, {**result, **changes})
    if wrong:
        say(console, wrong, "bold red")
    console.finish(f"Written to {path}", path)
    return status


def _parser(configs: Sequence[ConfigOptions], viewers: Sequence[ViewOptions]) -> Parser:
    parser = Parser("evaluate", __doc__)
    parser.add_argument("run", type=Path, help="run folder, for example runs/digits")
    parser.add_argument(
        "--split", type=str, default="test", help="test, valid or train (default: test)"
    )
    parser.add_argument(
        "--budgets",
        type=int,
        nargs="*",
        metavar="EVALS",
        help="limits on evaluations for a language model (default: "
        f"{' '.join(map(str, evaluation.BUDGETS))}); give none for the solver's own limit only; "
        "limits above it change nothing",
    )
    for each in configs:
        each.add_to(parser)
    parser.add_argument(
        "--no-baselines",
        action="store_true",
        help="skip what the run is compared with: a trigram model takes minutes on a text of 100 "
        "million words; its figures are kept in the run folder",
    )
    parser.add_argument(
        "--data",
        type=str,
        help="text file, .npz file of graphs or folder to evaluate on, or name of a data set (with "
        "--data-dir for the folder that holds it), in place of the run's own data; all of a "
        "file, or of a folder without train and test, is the "
        "test set",
    )
    add_solver(parser)
    for each in viewers:
        each.add_to(parser)
    parser.add_data_dir()
    parser.add_device()
    return parser


def measure(
    loaded: run.Run,
    accelerator: Accelerator,
    *,
    split: str = "test",
    limits: Sequence[int] = evaluation.BUDGETS,
    views: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return everything that is measured of a run on a split.

    Args:
        loaded: the run, with its data.
        accelerator: gives the device and the processes.
        split: one of the task's.
        limits: numbers of evaluations at which a text is also evaluated.
        views: how the model sees samples; see `ViewOptions.changes_of`.
    """
    recipe, task = loaded.recipe, loaded.data
    model = loaded.model.to(accelerator.device).eval()
    for each in options_of("evaluate", ViewOptions):
        model = each.view(model, views or {})
    options: dict[str, Any] = {"split": split, "batch_size": recipe.eval_batch_size}
    depths = () if task.streams else evaluation.DEPTHS
    result, seconds = evaluation.time_evaluation(
        model, task, accelerator, depths=depths, record=True, **options
    )
    if isinstance(model, EquilibriumModel):
        probes = evaluation.probes(task, recipe.probes, accelerator)
        result["spectral_radius"] = evaluation.radius(model, probes.inputs)
    if task.streams:
        result[f"seconds_per_{task.unit[:-1]}"] = seconds
        if isinstance(model, EquilibriumModel):
            result["budgets"] = evaluation.budgets(
                model, task, accelerator, limits=limits, **options
            )
    return result


def _changes(
    options: Sequence[ConfigOptions] | Sequence[ViewOptions], arguments: Any, recipe: Recipe
) -> dict[str, Any]:
    """Return what the options of all applications change, as a record holds it."""
    changes: dict[str, Any] = {}
    for each in options:
        changes |= each.changes_of(arguments, recipe)
    return changes


def _check_budgets(loaded: run.Run, limits: Sequence[int]) -> None:
    """Refuse limits on evaluations that limit nothing.

    Raises:
        UserError: one is below 1, or the run is not of an equilibrium language model.
    """
    if any(limit < 1 for limit in limits):
        raise UserError(f"--budgets must be 1 or more each; got {' '.join(map(str, limits))}")
    what = "--budgets is for equilibrium language models"
    if not loaded.data.streams:
        raise UserError(f"{what}: {_other(loaded)}")
    if not loaded.recipe.model.implicit:
        name = type(loaded.recipe.model).__name__
        raise UserError(f"{what}: {name} describes an explicit network, which has no solver")


def _other(loaded: run.Run) -> str:
    return f"the task of this run is {type(loaded.recipe.task).__name__}"


def _not_finite(result: Mapping[str, Any], loaded: run.Run) -> str:
    """Say that weights or the loss are not finite; "" where all is well.

    Where the weights of the cell are not, solves end at their start, and the loss can be finite.
    """
    tensors = dict(loaded.model.named_parameters())
    broken = [name for name, each in tensors.items() if not bool(torch.isfinite(each).all())]
    if broken:
        what = f"{broken[0]} and others" if broken[1:] else broken[0]
        return (
            f"{len(broken)} of {len(tensors)} tensors of weights {'are' if broken[1:] else 'is'} "
            f"not finite ({what}): these figures tell nothing of the model"
        )
    if not math.isfinite(result["loss"]):
        return f"The loss is {result['loss']}, though all weights are finite"
    return ""


def show(
    result: Mapping[str, Any],
    loaded: run.Run,
    console: Console,
    views: Mapping[str, Any] | None = None,
) -> None:
    """Print the figures, under `views` as `measure` takes them."""
    task = loaded.data
    unit, split, primary = task.unit, task.eval_split, task.primary
    where = f"{loaded.folder},"
    if loaded.other is not None:
        where = f"{loaded.folder} on other data:"
    seen = "".join(each.describe(views or {}) for each in options_of("evaluate", ViewOptions))
    title = f"{where} {result[unit]:,} {result['split']} {unit} of {task.source}{seen}"
    table = figures_table(title, _figures(result, task))
    if task.streams:
        table.add_row(f"time per {unit[:-1]}", f"{1e3 * result[f'seconds_per_{unit[:-1]}']:.3f} ms")
    if result["forward"]["status"] is not None:
        for name, value in _solves(result["forward"]):
            table.add_row(name, value)
    if "spectral_radius" in result:
        count = task.sample(split, loaded.recipe.probes).samples
        split = "validation" if split == "valid" else split
        where = plural(count, f"{split} {'segment' if task.streams else 'sample'}")
        table.add_row(
            f"spectral radius at {where}: mean, max",
            "{mean:.2f}, {max:.2f}".format(**result["spectral_radius"]),
        )
    for depth, figures in result.get("at", {}).items():
        after = f"{primary.label} after {plural(int(depth), 'evaluation')}"
        table.add_row(after, primary.format(figures[primary.name]))
    if "baseline" in result:
        # A baseline's loss is its cross-entropy.
        for name, value in _figures(result["baseline"], task, loss=task.loss_metric == LOSS):
            table.add_row(f"{result['baseline']['name']}: {name}", value)
    console.print(table)
    if result.get("budgets"):
        names = [name for name, _ in _figures(result["budgets"][0], task, loss=False)]
        heads = ("at most", "evaluations", "converged", *names, f"ms per {unit[:-1]}")
        rows = [
            [
                str(row["max_evals"]),
                f"{row['forward']['evals']['mean']:.1f}",
                percent(row["forward"]["status"]["CONVERGED"]),
                *(value for _, value in _figures(row, task, loss=False)),
                f"{1e3 * row[f'seconds_per_{unit[:-1]}']:.3f}",
            ]
            for row in result["budgets"]
        ]
        for budgets in fit_table(console, "fewer evaluations", heads, rows):
            console.print(budgets)


def _figures(result: Mapping[str, Any], task: Task, *, loss: bool = True) -> list[tuple[str, str]]:
    """Return the figures of a task's metrics that are known, as names and text.

    Args:
        result: the figures, by the name of the metric.
        task: whose metrics they are.
        loss: whether the loss is one of them even where the task has others.
    """
    more = (task.loss_metric,) if loss or not task.metrics else ()
    metrics = dict.fromkeys((*task.metrics, *more))
    known = (each for each in metrics if each.name in result)
    return [(each.label, each.format(result[each.name])) for each in known]


def _solves(forward: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how solves ended and what they cost."""
    evals, status = forward["evals"], forward["status"]
    rows = [
        (f"{each.name}: {each.message}", percent(status[each.name]))
        for each in Status
        if status[each.name] or each is Status.CONVERGED
    ]
    cost = f"{evals['mean']:.1f}, {evals['p50']}, {evals['p90']}, {evals['p99']}, {evals['max']}"
    rows.append(("evaluations: mean, median, 90 %, 99 %, max", cost))
    if error := forward.get("error"):
        found = ", ".join(f"{error[name]:.1e}" for name in ("p50", "p90", "p99"))
        rows.append(("estimated error of converged states: median, 90 %, 99 %", found))
    return rows
