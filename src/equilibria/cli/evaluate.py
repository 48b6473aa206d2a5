"""Evaluate a run: how good it is, how each solve ended, what it cost, and what fewer evaluations
would do: the accuracy of what is read from the state after 1, 2, 3, 5, 8 and 12 of them; or, of a
language model, the perplexity where solves are stopped after 2, 4, 8, 12, 16 and 24. Beside a
language model stands an interpolated trigram model of the same text. The figures are written to
evaluation.json in the run folder too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from rich.table import Table

from equilibria.cli.memory import looking_back
from equilibria.cli.parser import Parser, UserError
from equilibria.models import EquilibriumModel
from equilibria.solve import Status
from equilibria.tasks.language import LanguageModelling, LanguageTask
from equilibria.train import baseline, evaluation, files, run
from equilibria.train.recipe import Recipe


def main(argv: Sequence[str]) -> None:
    """Run `equilibria evaluate` with the words `argv`."""
    parser = Parser("evaluate", __doc__)
    parser.add_argument("run", type=str, help="run folder, for example runs/digits")
    parser.add_argument(
        "--split", type=str, default="test", help="test, valid or train (default: test)"
    )
    parser.add_argument(
        "--budgets",
        type=int,
        nargs="*",
        metavar="EVALS",
        help="limits of evaluations for a language model (default: "
        f"{' '.join(map(str, evaluation.BUDGETS))}); none at all for no other limit than its own, "
        "above which a limit changes nothing",
    )
    parser.add_argument(
        "--memory", type=int, help="times before a segment that a Transformer is to see"
    )
    parser.add_argument(
        "--no-trigram",
        action="store_true",
        help="leave the trigram model out, which takes minutes on a text of 100 million words",
    )
    parser.add_argument(
        "--data-dir",
        type=str,
        help="folder to look for data sets in, before $EQUILIBRIA_DATA and a download",
    )
    arguments = parser.parse_args(list(argv))
    data_dir = Path(arguments.data_dir) if arguments.data_dir else None
    folder = run.Folder(Path(arguments.run))
    if not folder.path.is_dir():
        raise run.RunError(f"there is no run folder {folder.path}")
    recipe = folder.read_recipe()
    if arguments.budgets is not None:
        _check_budgets(recipe, arguments.budgets)
    if arguments.no_trigram and not isinstance(recipe.task, LanguageModelling):
        raise UserError(f"--no-trigram is for language models: {_other(recipe)}")
    memory = arguments.memory
    changes = {} if memory is None else looking_back(recipe, memory, fewest=0)
    loaded = run.load(folder.path, data_dir=data_dir, changes=changes)
    if arguments.split not in loaded.data.splits:
        raise UserError(
            f"--split must be one of {', '.join(loaded.data.splits)}; got {arguments.split}"
        )
    accelerator = evaluation.accelerator(loaded.recipe.precision)
    limits = evaluation.BUDGETS if arguments.budgets is None else tuple(arguments.budgets)
    console = Console()
    with console.status("Evaluating ..."):
        result = measure(loaded, accelerator, split=arguments.split, limits=limits)
    if not accelerator.is_main_process:
        return
    if isinstance(loaded.data, LanguageTask) and not arguments.no_trigram:
        with console.status("Counting trigrams ..."):
            try:
                result["trigram"] = baseline.trigram(loaded.data, folder, arguments.split)
            except ValueError as error:
                console.print(f"No trigram model: {error}", style="yellow", markup=False)
    path = folder.evaluation_of(arguments.split, changed=bool(changes))
    files.write_json(path, {**result, **changes})
    show(result, loaded, console)
    console.print(f"Written to {path}", soft_wrap=True, markup=False)


def measure(
    loaded: run.Run,
    accelerator: Accelerator,
    *,
    split: str = "test",
    limits: Sequence[int] = evaluation.BUDGETS,
) -> dict[str, Any]:
    """Return everything that is known of a run on a split.

    Args:
        loaded: the run, with its data.
        accelerator: tells the device and the processes.
        split: one of the task's.
        limits: numbers of evaluations under which a text is read too.
    """
    recipe, task = loaded.recipe, loaded.data
    model = loaded.model.to(accelerator.device)
    options: dict[str, Any] = {"split": split, "batch_size": recipe.eval_batch_size}
    depths = () if task.streams else evaluation.DEPTHS
    result, seconds = evaluation.timed(model, task, accelerator, depths=depths, **options)
    if isinstance(model, EquilibriumModel):
        probes = evaluation.probes(task, recipe.probes, accelerator)
        result["spectral_radius"] = evaluation.radius(model, probes.inputs)
    if isinstance(task, LanguageTask):
        result["seconds_per_token"] = seconds
        result |= task.per_character(split, result["bits"])
        if isinstance(model, EquilibriumModel):
            result["budgets"] = evaluation.budgets(
                model, task, accelerator, limits=limits, **options
            )
    return result


def _check_budgets(recipe: Recipe, limits: Sequence[int]) -> None:
    """Refuse limits of evaluations that can limit nothing.

    Raises:
        UserError: one is below 1, or the run is of no equilibrium language model.
    """
    if any(limit < 1 for limit in limits):
        raise UserError(f"--budgets must be 1 or more each; got {' '.join(map(str, limits))}")
    what = "--budgets is for language models with an equilibrium"
    if not isinstance(recipe.task, LanguageModelling):
        raise UserError(f"{what}: {_other(recipe)}")
    if not recipe.model.implicit:
        name = type(recipe.model).__name__
        raise UserError(f"{what}: {name} describes an explicit network, which solves nothing")


def _other(recipe: Recipe) -> str:
    return f"the task of this run is {type(recipe.task).__name__}"


def show(result: Mapping[str, Any], loaded: run.Run, console: Console) -> None:
    """Print the figures."""
    unit = loaded.data.unit
    judged = loaded.data.judged
    title = f"{loaded.folder}, {result[unit]} {result['split']} {unit} of {loaded.data.source}"
    table = Table("figure", "value", title=title)
    if "accuracy" in result:
        table.add_row("accuracy", f"{100 * result['accuracy']:.2f} %")
    table.add_row("loss", f"{result['loss']:.4f}")
    if "perplexity" in result:
        for name, value in _language(result, loaded.data):
            table.add_row(name, value)
        table.add_row("time a token", f"{1e3 * result['seconds_per_token']:.3f} ms")
    if result["forward"]["status"] is not None:
        for name, value in _solves(result["forward"]):
            table.add_row(name, value)
    if "spectral_radius" in result:
        count = len(loaded.data.sample(judged, loaded.recipe.probes).inputs)
        where = f"{count} {judged} {'segments' if loaded.data.streams else unit}"
        table.add_row(
            f"spectral radius at {where}: mean, largest",
            "{mean:.2f}, {max:.2f}".format(**result["spectral_radius"]),
        )
    for depth, accuracy in result.get("accuracy_at", {}).items():
        table.add_row(f"accuracy after {depth} evaluations", f"{100 * accuracy:.2f} %")
    if "trigram" in result:
        for name, value in _language(result["trigram"], loaded.data):
            table.add_row(f"trigram model: {name}", value)
    console.print(table)
    if result.get("budgets"):
        heads = ("at most", "evaluations", "converged", "perplexity", "bits", "ms a token")
        budgets = Table(*heads, title="fewer evaluations")
        for row in result["budgets"]:
            forward = row["forward"]
            budgets.add_row(
                str(row["max_evals"]),
                f"{forward['evals']['mean']:.1f}",
                f"{100 * forward['status']['CONVERGED']:.1f} %",
                f"{row['perplexity']:.2f}",
                f"{row['bits']:.3f}",
                f"{1e3 * row['seconds_per_token']:.3f}",
            )
        console.print(budgets)


def _language(result: Mapping[str, Any], task: Any) -> list[tuple[str, str]]:
    """Return perplexity and bits in words."""
    rows = [("perplexity", f"{result['perplexity']:.2f}")]
    if task.corpus.unit == "words":
        rows.append(("bits a word", f"{result['bits']:.3f}"))
    if "bits_per_character" in result:
        rows.append(("bits a character", f"{result['bits_per_character']:.3f}"))
    return rows


def _solves(forward: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how solves ended and what they cost."""
    evals, status = forward["evals"], forward["status"]
    rows = [
        (f"{each.name}: {each.message}", f"{100 * status[each.name]:.2f} %")
        for each in Status
        if status[each.name] or each is Status.CONVERGED
    ]
    cost = f"{evals['mean']:.1f}, {evals['p50']}, {evals['p90']}, {evals['p99']}, {evals['max']}"
    return [*rows, ("evaluations: mean, median, 90 %, 99 %, most", cost)]
