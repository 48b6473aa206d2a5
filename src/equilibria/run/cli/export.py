"""Write a trained model as a file that runs without this library: ONNX, or a program of
torch.export. The file takes raw inputs, as they are before the task normalises them, for any number
of samples, and gives logits. --form stream writes one step of a recurrent model, which takes and
gives its state.

What is in the file is a fixed number of operations: in a model that solves to a tolerance each
solve is that of --evals evaluations, from the layer's own start. The command says which residual
they leave and how many predictions they change.

The file is read again and compared with PyTorch on the samples of a split before it is written. If
its logits differ by more than --tolerance times the largest one, nothing is written, and the exit
status is 1; int8 weights have no such bound: compare the figures.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equilibria import files
from equilibria.run import run
from equilibria.run.cli import errors
from equilibria.run.cli.output import Output, figures_table
from equilibria.run.cli.parser import Parser, UserError, check_least
from equilibria.run.export import Exported, ExportError, Judgment, export, find_evals, judge
from equilibria.run.export.exporting import Form, Format, Weights, list_absent
from equilibria.run.export.inference import layers
from equilibria.run.export.iterated import Method
from equilibria.run.export.judging import TOLERANCE
from equilibria.run.tasks import Task
from equilibria.words import percent

NAMES = {"onnx": "ONNX", "pt2": "torch.export"}


def main(argv: Sequence[str]) -> None:
    """Run `equilibria export` with the words `argv`."""
    parser = _parser()
    arguments = parser.parse_args(list(argv))
    folder = run.Folder(arguments.run)
    recipe = folder.read_recipe()
    check_least(arguments, evals=1, samples=1)
    for option in ("evals", "method"):
        if getattr(arguments, option) is not None and not recipe.model.implicit:
            raise UserError(
                f"--{option} is for equilibrium networks: {type(recipe.model).__name__} describes "
                "an explicit network, which has nothing to solve"
            )
    if not 0.0 <= arguments.tolerance < 1.0:
        raise UserError(f"--tolerance must lie in [0, 1); got {arguments.tolerance:g}")
    format = _format(arguments.format, arguments.out)
    out = arguments.out or folder.path / _name(format, arguments.form, arguments.weights)
    _check_free(out, arguments.fresh)
    loaded = run.load(folder.path, data_dir=arguments.data_dir)
    task, split = loaded.data, arguments.split or loaded.data.eval_split
    if split not in task.splits:
        raise UserError(f"--split must be one of {', '.join(task.splits)}; got {split}")
    console, method = Output(quiet=arguments.quiet), arguments.method or "anderson"
    size = recipe.eval_batch_size
    with console.status("Exporting ..."):
        evals = arguments.evals
        if evals is None:
            evals = find_evals(loaded.model, task, method, size) if layers(loaded.model) else 1
        made = export(
            loaded.model,
            task,
            format=format,
            form=arguments.form,
            weights=arguments.weights,
            evals=evals,
            method=method,
        )
    with console.status("Comparing with PyTorch ..."):
        found = judge(
            made, loaded.model, task, split=split, batch_size=size, samples=arguments.samples
        )
    if not (found.agrees(arguments.tolerance) or (arguments.weights == "int8" and found.finite)):
        raise ExportError(_difference(found, split, arguments.tolerance))
    files.write_bytes(out, made.content)
    title = f"{folder.path}, {NAMES[format]}" + (f", opset {made.opset}" if made.opset else "")
    table = figures_table(title, _rows(made, found, task, split))
    if found.residual is not None:
        table.add_row("evaluations", f"{evals}, {method}" + (arguments.evals is None) * " (chosen)")
        mean, most = found.residual
        table.add_row("relative residual after them: mean, max", f"{mean:.1e}, {most:.1e}")
        table.add_row("predictions other than the run's", percent(found.changed))
    console.print(table)
    console.finish(f"Written to {out}", out)


def _parser() -> Parser:
    parser = Parser("export", __doc__)
    parser.add_argument("run", type=Path, help="run folder, for example runs/digits")
    parser.add_argument(
        "--out", type=Path, help="file to write (default: model.onnx or such in the run folder)"
    )
    parser.add_argument("--fresh", action="store_true", help="replace the file of an earlier call")
    parser.add_argument(
        "--format",
        type=Format,
        help="onnx, which needs the extra `export`, or pt2 for torch.export (default: by the "
        "suffix of --out, else onnx)",
    )
    parser.add_argument(
        "--form",
        type=Form,
        default="whole",
        help="whole inputs, or stream: one step of a recurrent model (default: whole)",
    )
    parser.add_argument(
        "--weights",
        type=Weights,
        default="float32",
        help="float32, or int8 in ONNX: matrices in eight bits (default: float32)",
    )
    parser.add_argument(
        "--evals",
        type=int,
        help="evaluations of an equilibrium layer (default: as many as bring a batch of the "
        "evaluation split to the tolerance of the run's solver, at most its max_evals)",
    )
    parser.add_argument(
        "--method",
        type=Method,
        help="how they follow from each other: anderson, accelerated at every third, or picard, "
        "plain iteration, a smaller graph (default: anderson)",
    )
    parser.add_argument(
        "--split",
        type=str,
        help="samples to compare on: test, valid or train (default: valid where there is one, "
        "else test)",
    )
    parser.add_number(
        "--tolerance",
        TOLERANCE,
        "how far logits of float32 may be from PyTorch's, relative to the largest one",
    )
    parser.add_argument("--samples", type=int, help="compare on so many of them (default: all)")
    parser.add_data_dir()
    return parser


def _format(given: Format | None, out: Path | None) -> Format:
    """The format that an option or the suffix of a file names.

    Raises:
        UserError: they name different ones, or ONNX's packages are missing.
    """
    suffix = "" if out is None else out.suffix.removeprefix(".")
    known: dict[str, Format] = {"onnx": "onnx", "pt2": "pt2"}
    format = given or known.get(suffix, "onnx")
    if suffix in known and known[suffix] != format:
        raise UserError(f"--format is {format}, and --out {out} ends in .{suffix}: change one")
    if format == "onnx" and (absent := list_absent()):
        advice = errors.advise_install("export") or f"ONNX needs packages: {', '.join(absent)}"
        raise UserError(f"{advice}; --format pt2 needs none of them")
    return format


def _name(format: Format, form: Form, weights: Weights) -> str:
    return f"model{'-stream' * (form == 'stream')}{'-int8' * (weights == 'int8')}.{format}"


def _check_free(out: Path, fresh: bool) -> None:
    """Check that the file can be written, before anything is computed.

    Raises:
        UserError: it cannot, or it exists and is not to be replaced.
    """
    if not out.parent.is_dir():
        raise UserError(f"--out: there is no folder {out.parent}")
    if out.is_dir():
        raise UserError(f"--out: {out} is a folder; name a file")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"--out: {out.parent} cannot be written to")
    if out.exists() and not fresh:
        raise UserError(f"{out} exists: replace it with --fresh, or name another file with --out")


def _difference(found: Judgment, split: str, tolerance: float) -> str:
    """Say that a file does not do what the model does, and what may be the reason."""
    remedy = ""
    if found.finite and found.residual is not None:
        remedy = (
            f". The evaluations leave a residual of up to {found.residual[1]:.1e}: in an iteration "
            "that does not converge rounding grows. Take fewer --evals, or a larger --tolerance"
        )
    return (
        f"the file does not do what PyTorch does: on {found.samples} {split} samples its logits "
        f"differ by up to {found.difference:.2g}, {found.relative:.1e} of the largest, where "
        f"{tolerance:.0e} is allowed; nothing was written{remedy}"
    )


def _rows(made: Exported, found: Judgment, task: Task, split: str) -> list[tuple[str, str]]:
    """What is said of every file, as names and text."""
    rows = [
        ("size", f"{len(made.content) / 1000:.1f} KB"),
        ("parameters", f"{made.parameters:,}"),
        *((f"input {name}", " x ".join(shape)) for name, shape in made.file.inputs.items()),
        *((f"output {name}", " x ".join(shape)) for name, shape in made.file.outputs.items()),
    ]
    for metric in dict.fromkeys((*task.metrics, task.loss_metric)):
        if metric.name in found.figures:
            both: tuple[Any, Any] = found.figures[metric.name], found.model_figures[metric.name]
            label = f"{metric.label} on {found.samples} {split} {task.unit}: file, PyTorch"
            rows.append((label, ", ".join(map(metric.format, both))))
    twin = "the same evaluations in PyTorch" if found.residual else "PyTorch"
    distances = {twin: found.difference}
    if found.residual:
        distances["the run's own solves"] = found.from_run
    for other, distance in distances.items():
        name = f"largest difference of a logit from {other}: absolute, relative"
        rows.append((name, f"{distance:.1e}, {found.to_scale(distance):.1e}"))
    return rows
