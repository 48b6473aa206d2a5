"""Say what to start a recipe's training from: which ensemble of weights, and at which scale.

The recurrent weights of the recipe's own model are drawn from each ensemble at each scale, and a
batch of its training data is solved: how many samples converge by the recipe's solver and by plain
iteration, in how many evaluations, and with which spectral radius at z*; beside it what the theory
of wide networks predicts, where it covers the cell. Table, recommendation, figure and page go into
a folder. Nothing is trained. Every key of the recipe is an option as well, as of `train`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from equilibria.cli.initialise_figure import panels
from equilibria.cli.parser import Parser, UserError, named_data, split
from equilibria.experiments.draw import draw
from equilibria.nn.init import ENSEMBLES
from equilibria.report import start_page
from equilibria.stability.ensembles import Recommendation, Start, Sweep, recommend
from equilibria.stability.ensembles.measure import DRAWS, SCALES
from equilibria.train import files, start
from equilibria.train import recipe as recipes
from equilibria.train.run import environment

OUT = Path("results") / "initialise"
JSON, FIGURE, PAGE = "initialise.json", "initialise.svg", "initialise.html"
STEPS = 9
"""Scales between two ends."""

OPTIONS = {
    **dict.fromkeys(("--ensembles", "--scales"), "+"),
    **dict.fromkeys(("--draws", "--samples", "--out", "--data", "--data-dir"), "1"),
    **dict.fromkeys(("--fresh", "--help"), ""),
}
"""Those that are no keys of the recipe; see `split`."""


def main(argv: Sequence[str]) -> None:
    """Run `equilibria initialise` with the words `argv`."""
    own, overrides = split(argv, OPTIONS)
    arguments = _parser().parse_args(own)
    name = arguments.recipe
    recipe = recipes.load(name, overrides)
    if arguments.data is not None:
        overrides = [*overrides, named_data(arguments.data, recipe.task)]
        recipe = recipes.load(name, overrides)
    for option in ("draws", "samples"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} must be 1 or more; got {value}")
    scales = _scales(arguments.scales)
    folder = Path(arguments.out or OUT / Path(name).stem)
    _check_free(folder, arguments.fresh)
    console = Console()
    console = console if console.is_terminal else Console(width=100)
    task = recipe.task.load(Path(arguments.data_dir) if arguments.data_dir else None)
    bar = Progress(
        TextColumn("Solving"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar as progress:
        ticket = progress.add_task("", total=None)
        found = start.examine_start(
            recipe,
            task,
            ensembles=arguments.ensembles,
            scales=scales,
            draws=arguments.draws,
            samples=arguments.samples,
            told=lambda done, of: progress.update(ticket, completed=done, total=of),
        )
    advice = recommend(found)
    if recipe.pretrain is not None:
        shallow = (
            f"The recipe trains a shallow network in its first {recipe.pretrain.steps} steps "
            "(pretrain): its solves begin from what these have made of the weights."
        )
        advice = replace(advice, remarks=(*advice.remarks, shallow))
    command = _command(name, recipe, overrides, advice) if advice.workable else None
    where = write(folder, recipe, found, advice, command=command, source=task.source)
    show(console, found, advice, command)
    if recipe.precision != "float32":
        console.print(
            f"The recipe trains in {recipe.precision}, and this was measured in float32.",
            style="yellow",
        )
    named = " and ".join(map(str, where))
    console.print(f"Written to {named}.", soft_wrap=True, markup=False, highlight=False)


def _parser() -> Parser:
    parser = Parser(
        "initialise", __doc__, usage="equilibria initialise RECIPE [options] [--KEY VALUE ...]"
    )
    parser.add_argument(
        "recipe", type=str, help="name of a recipe (see `equilibria recipes`), or a YAML file"
    )
    parser.add_argument(
        "--ensembles",
        type=str,
        nargs="+",
        default=list(start.ENSEMBLES),
        metavar="NAME",
        help=f"of {', '.join(ENSEMBLES)} (default: {' '.join(start.ENSEMBLES)})",
    )
    parser.add_argument(
        "--scales",
        type=float,
        nargs="+",
        default=list(SCALES),
        metavar="SCALE",
        help="sqrt(V), root mean square of the singular values: the scales to try, or two ends, "
        f"between which {STEPS} are tried (default: {' '.join(f'{s:g}' for s in SCALES)})",
    )
    parser.add_argument(
        "--draws", type=int, default=DRAWS, help=f"draws of the weights at each (default: {DRAWS})"
    )
    parser.add_argument(
        "--samples",
        type=int,
        help=f"training samples to solve (default: {start.SAMPLES}; {start.SEQUENCES} sequences)",
    )
    parser.add_argument("--out", type=str, help=f"folder for the files (default: {OUT}/RECIPE)")
    parser.add_argument(
        "--fresh", action="store_true", help="replace what an earlier call has left in the folder"
    )
    parser.add_argument(
        "--data", type=str, help="text file or folder of images, or name of a data set"
    )
    parser.add_argument(
        "--data-dir",
        type=str,
        help="folder to look for data sets in, before $EQUILIBRIA_DATA and a download",
    )
    return parser


def _scales(given: Sequence[float]) -> list[float]:
    """The scales themselves, or a row in equal ratios between two ends.

    Raises:
        UserError: one is not positive and finite.
    """
    for scale in given:
        if not 0 < scale < float("inf"):
            raise UserError(f"--scales are positive and finite; got {scale:g}")
    if len(given) != 2 or given[0] == given[1]:
        return list(given)
    low, high = given
    return [float(f"{low * (high / low) ** (i / (STEPS - 1)):.3g}") for i in range(STEPS)]


def _check_free(folder: Path, fresh: bool) -> None:
    """See that nothing is overwritten.

    Raises:
        UserError: there is something in the folder, other than what is to be replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder with --out")
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there - {JSON, FIGURE, PAGE}:
        raise UserError(
            f"{folder} exists and holds other things: name an empty or a new folder with --out"
        )
    if there and not fresh:
        raise UserError(
            f"{folder} holds an examination already and is not overwritten: replace it with "
            "--fresh, or name another folder with --out"
        )


def _command(
    name: str, recipe: recipes.Recipe, overrides: Sequence[str], advice: Recommendation
) -> str:
    """The command that trains as recommended."""
    words = ["equilibria", "train", name, *overrides, *advice.options.split()]
    if recipe.initialisation is not None and recipe.initialisation.radius is not None:
        words += ["--initialisation.radius", "null"]
    return shlex.join(words)


def write(
    folder: Path,
    recipe: recipes.Recipe,
    found: Sweep,
    advice: Recommendation,
    *,
    command: str | None,
    source: str,
) -> list[Path]:
    """Write the files, each whole or not at all, and return where they are.

    Args:
        folder: is made where it is missing.
        recipe: whose start was examined.
        found: what was measured.
        advice: what it means.
        command: that trains as recommended; None where nothing is.
        source: what the data are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {key: value for key, value in environment().items() if key != "date"}
    record: dict[str, Any] = {
        "recommendation": advice.json() | {"command": command},
        "sweep": found.json(),
        "source": source,
        "recipe": recipes.dump(recipe),
        "about": about,
    }
    draw(panels(found), folder / FIGURE)
    svg = (folder / FIGURE).read_text("utf-8")
    head, rows = table(found)
    files.write_text(
        folder / PAGE,
        start_page(
            name=folder.name,
            description=recipe.description,
            about=_subject(found),
            reasons=advice.reasons,
            remarks=advice.remarks,
            command=command,
            figure=svg,
            head=head,
            rows=rows,
        ),
    )
    files.write_json(folder / JSON, record)
    return [folder / PAGE, folder / FIGURE, folder / JSON]


def show(console: Console, found: Sweep, advice: Recommendation, command: str | None) -> None:
    """Print the table and the recommendation."""
    head, rows = table(found, whole=False)
    grid = Table(title=_subject(found), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(head):
        grid.add_column(column, justify="right" if place else "left")
    chosen = (advice.ensemble, f"{advice.scale:g}")
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        best = advice.workable and (row[0], row[1]) == chosen
        ends = after is not None and after[0] != row[0]
        grid.add_row(*row, style="bold green" if best else None, end_section=ends)
    console.print(grid)
    style = "bold" if advice.workable else "bold yellow"
    console.print(advice.reasons[0], style=style, markup=False, highlight=False)
    console.print(" ".join(advice.reasons[1:]), markup=False, highlight=False)
    for remark in advice.remarks:
        console.print(f"- {remark}", markup=False, highlight=False)
    if command is not None:
        console.print(f"To train: {command}", soft_wrap=True, markup=False, highlight=False)


def _subject(found: Sweep) -> str:
    maps = "one map" if found.maps == 1 else f"{found.maps} maps"
    return (
        f"{found.samples} samples of {found.entries} entries, {maps}; {found.solver} and plain "
        f"iteration to {found.rtol:g} within {found.max_evals} evaluations"
    )


def table(found: Sweep, *, whole: bool = True) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table: a row for each ensemble and scale.

    Args:
        found: what was measured.
        whole: all columns, or as many as a terminal has room for.
    """
    columns: list[tuple[str, Callable[[Start], str]]] = [
        ("ensemble", lambda start: start.ensemble),
        ("scale", lambda start: f"{start.scale:g}"),
    ]
    if any(abs(start.gain - start.scale) > 0.05 * start.scale for start in found.starts):
        columns += [("acts as", lambda start: _number(start.gain))]
    columns += [
        ("converged", lambda start: _share(start.converged, start.worst)),
        ("evals", lambda start: f"{start.evals:.1f}"),
        ("plain", lambda start: _share(start.plain_converged)),
        ("evals", lambda start: f"{start.plain_evals:.1f}"),
        ("radius", lambda start: _number(start.radius)),
    ]
    if whole:
        columns += [
            ("its range", lambda start: "–".join(map(_number, start.radii))),
            ("largest", lambda start: _number(start.largest)),
        ]
    if found.theory:
        columns += [("theory", lambda start: _number(start.forecast and start.forecast.radius))]
    if whole and any(math.isfinite(start.response) for start in found.starts):
        columns += [("h*.h*/N", lambda start: _number(start.response))]
        if found.theory:
            columns += [
                ("theory", lambda start: _number(start.forecast and start.forecast.response))
            ]
    rows = [[text(start) for _, text in columns] for start in found.starts]
    return [head for head, _ in columns], rows


def _share(mean: float, worst: float | None = None) -> str:
    said = f"{100 * mean:.0f} %"
    return said if worst is None or worst == mean else f"{said} (≥ {100 * worst:.0f})"


def _number(value: float | None) -> str:
    """Three digits; a dash for none."""
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"
