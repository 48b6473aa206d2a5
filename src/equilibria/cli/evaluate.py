"""Evaluate a run on its test set: accuracy, how each solve ended, what it cost, and how accurate
the answers are after 1, 2, 3, 5, 8 and 12 evaluations. The figures are written to evaluation.json
in the run folder too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from equilibria.cli.parser import Parser
from equilibria.solve import Status
from equilibria.train import evaluation, files, run


def main(argv: Sequence[str]) -> None:
    """Run `equilibria evaluate` with the words `argv`."""
    parser = Parser("evaluate", __doc__)
    parser.add_argument("run", type=str, help="run folder, for example runs/digits")
    parser.add_argument(
        "--data-dir",
        type=str,
        help="folder to look for data sets in, before $EQUILIBRIA_DATA and a download",
    )
    arguments = parser.parse_args(list(argv))
    data_dir = Path(arguments.data_dir) if arguments.data_dir else None
    loaded = run.load(arguments.run, data_dir=data_dir)
    recipe, task = loaded.recipe, loaded.data
    accelerator = evaluation.accelerator(recipe.precision)
    model = loaded.model.to(accelerator.device)
    result = evaluation.evaluate(
        model,
        task,
        task.test,
        accelerator,
        batch_size=recipe.eval_batch_size,
        depths=evaluation.DEPTHS,
    )
    probes, _ = evaluation.to_device(task.test, slice(recipe.probes), accelerator)
    result["spectral_radius"] = evaluation.radius(model, probes)
    if not accelerator.is_main_process:
        return
    path = run.Folder(loaded.folder).evaluation
    files.write_json(path, result)
    console = Console()
    forward, evals = result["forward"]["status"], result["forward"]["evals"]
    table = Table("figure", "value", title=f"{loaded.folder}, {result['samples']} test samples")
    table.add_row("accuracy", f"{100 * result['accuracy']:.2f} %")
    table.add_row("loss", f"{result['loss']:.4f}")
    for status in Status:
        if forward[status.name] or status is Status.CONVERGED:
            table.add_row(f"{status.name}: {status.message}", f"{100 * forward[status.name]:.2f} %")
    table.add_row(
        "evaluations: mean, median, 90 %, 99 %, most",
        f"{evals['mean']:.1f}, {evals['p50']}, {evals['p90']}, {evals['p99']}, {evals['max']}",
    )
    table.add_row(
        f"spectral radius at {recipe.probes} of them: mean, largest",
        "{mean:.2f}, {max:.2f}".format(**result["spectral_radius"]),
    )
    for depth, accuracy in result["accuracy_at"].items():
        table.add_row(f"accuracy after {depth} evaluations", f"{100 * accuracy:.2f} %")
    console.print(table)
    console.print(f"Written to {path}", soft_wrap=True, markup=False)
