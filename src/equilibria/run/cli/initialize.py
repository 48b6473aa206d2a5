"""Recommend initial weights for a recipe: which ensemble, and at which scale.

The recurrent weights of the recipe's own model are drawn from each ensemble at each scale, and a
batch of its training data is solved: how many samples converge with the recipe's solver and with
plain iteration, in how many evaluations, and with which spectral radius at z*, compared with the
prediction for wide networks where the theory covers the cell. The largest radius over the samples
counts, as for the key `initialization.radius`. Prints a table, in which a star marks the
recommended start, and writes the numbers and a figure to a folder. Nothing is trained. Every key of
the recipe is also an option, as for `train`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from equilibria import files
from equilibria.nn.init import ENSEMBLES
from equilibria.run import config, start
from equilibria.run import processes as devices
from equilibria.run import recipe as recipes
from equilibria.run.cli.output import Output, progress_bar, say, titled_table
from equilibria.run.cli.parser import Parser, UserError, name_data
from equilibria.run.recipe import Recipe
from equilibria.run.report.panel import Panel, Series
from equilibria.run.report.svg import picture
from equilibria.run.run import environment
from equilibria.stability.ensembles import Recommendation, Start, Sweep, recommend, tabulate
from equilibria.stability.ensembles.measure import DRAWS, SCALES
from equilibria.stability.ensembles.recommendation import AIM

OUT = Path("results") / "initialise"
JSON, FIGURE = "initialise.json", "initialise.svg"


def main(argv: Sequence[str]) -> None:
    """Run `equilibria initialize` with the words `argv`."""
    parser = _parser()
    own, overrides = parser.separate(argv)
    arguments = parser.parse_args(own)
    name = arguments.recipe
    devices.device(arguments.device)  # is it there? Before any data are read
    recipe = recipes.load(name, overrides)
    if arguments.data is not None:
        overrides = [*overrides, *name_data(arguments.data, recipe.task)]
        recipe = recipes.load(name, overrides)
    folder = Path(arguments.out or OUT / Path(name).stem)
    _check_free(folder, arguments.fresh)
    console = Output(quiet=arguments.quiet, width=100)
    with config.as_chosen():
        task = recipe.task.load(arguments.data_dir)
    with progress_bar(console, transient=True) as bar, config.as_chosen():
        solves = bar.add_task("Solving", total=None)
        found = start.examine_start(
            recipe,
            task,
            ensembles=arguments.ensembles,
            scales=arguments.scales,
            draws=arguments.draws,
            samples=arguments.samples,
            progress=lambda done, of: bar.update(solves, completed=done, total=of),
            device=arguments.device,
        )
    advice = recommend(found)
    command = _command([name, *overrides], recipe, advice, arguments.data_dir)
    show(console, found, advice, command)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(folder / FIGURE, picture(panels(found)))
    record: dict[str, Any] = {
        "recommendation": advice.json() | {"command": command},
        "sweep": found.json(),
        "source": task.source,
        "recipe": recipes.dump(recipe),
        "about": {key: value for key, value in environment().items() if key != "date"},
    }
    files.write_json(folder / JSON, record)
    console.finish(f"Written to {folder / JSON} and {folder / FIGURE}.", folder / JSON)


def _parser() -> Parser:
    parser = Parser(
        "initialize", __doc__, usage="equilibria initialize RECIPE [options] [--KEY VALUE ...]"
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
        help="scales to try, sqrt(V), the root mean square of the singular values "
        f"(default: {' '.join(f'{s:g}' for s in SCALES)})",
    )
    parser.add_number("--draws", DRAWS, "weight draws per scale")
    parser.add_argument(
        "--samples",
        type=int,
        help=f"training samples to solve (default: {start.SAMPLES}; {start.SEQUENCES} sequences)",
    )
    parser.add_argument("--out", type=str, help=f"folder for the files (default: {OUT}/RECIPE)")
    parser.add_argument(
        "--fresh", action="store_true", help="replace the results of an earlier call in the folder"
    )
    parser.add_argument(
        "--data",
        type=str,
        help="data in place of the recipe's task.data or task.file: text file or folder, or name "
        "of a data set, with --data-dir for the folder that holds it",
    )
    parser.add_data_dir()
    parser.add_device()
    return parser


def _check_free(folder: Path, fresh: bool) -> None:
    """Check that nothing is overwritten.

    Raises:
        UserError: the folder is a file, or holds results that are not to be replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder with --out")
    if any((folder / name).exists() for name in (JSON, FIGURE)) and not fresh:
        raise UserError(
            f"{folder} already holds results, which are not overwritten: replace them with "
            "--fresh, or name another folder with --out"
        )


def _command(
    given: Sequence[str], recipe: Recipe, advice: Recommendation, data_dir: Path | None
) -> str | None:
    """The command that trains as recommended, if anything is; each key in it stands once."""
    if not advice.workable:
        return None
    options = dict(config.pairs(given[1:]))
    for replaced in ("name", "ensemble", "scale", "radius"):
        options.pop(f"initialization.{replaced}", None)
    kept = [word for key, value in options.items() for word in (f"--{key}", value)]
    words = ["equilibria", "train", given[0], *kept, *advice.options.split()]
    if recipe.initialization is not None and recipe.initialization.radius is not None:
        words += ["--initialization.radius", "null"]
    if data_dir is not None:
        words += ["--data-dir", str(data_dir)]
    return shlex.join(words)


def show(console: Console, found: Sweep, advice: Recommendation, command: str | None) -> None:
    """Print the table, the recommendation with the command that follows it, and the warnings."""
    head, rows = tabulate(found, advice)
    grid = titled_table(
        f"{found.samples} samples of {found.entries} entries; {found.solver} and plain "
        f"iteration to {found.rtol:g} within {found.max_evals} evaluations"
    )
    for place, column in enumerate(head):  # ensembles are names that --ensembles takes
        justify = "right" if place else "left"
        grid.add_column(column, justify=justify, overflow="fold", no_wrap=not place)
    for before, row in pairwise([rows[0], *rows]):
        if row[0] != before[0]:
            grid.add_section()
        grid.add_row(*row, style="bold green" if row[1].startswith("*") else None)
    console.print(grid)
    said = f"{advice}: {command}" if command else f"{advice}."
    for line in (said, *(f"Warning: {sentence}" for sentence in advice.warnings)):
        say(console, line)


# --- initialize figure ----------------------------------------------------------------------------

# The figure of `equilibria initialize`: radius, convergence and evaluations against the scale.


def panels(found: Sweep) -> list[Panel]:
    """Three panels: the spectral radius with its prediction, the shares, the evaluations.

    A radius has a band from the mean to the largest, and is left out where so few samples converge
    that it would only be that of the survivors.

    Args:
        found: what a sweep has measured.
    """
    radii = _lines(
        found,
        lambda start: start.radius if start.workable else None,
        lambda start: start.predicted,
        lambda start: start.largest if start.workable else None,
    )
    shares = _lines(found, lambda start: start.converged, lambda start: start.plain_converged)
    evals = _lines(found, lambda start: start.evals, lambda start: start.plain_evals)
    panel = partial(Panel, x="scale sqrt(V)", log_x=True)
    compared = f"{found.solver} (points), plain iteration (dashed)"
    return [
        panel(
            title=f"measured (points), predicted (dashed); grey: {AIM[0]} to {AIM[1]}",
            y="spectral radius of J at z*",
            series=radii,
            zero=True,
            bands=(AIM,),
            levels=(("1", 1.0),),
        ),
        panel(title=compared, y="share of samples converged", series=shares, span_y=(-0.03, 1.03)),
        panel(title=compared, y="evaluations per sample", series=evals, zero=True),
    ]


Figure = Callable[[Start], float | None]


def _lines(found: Sweep, own: Figure, other: Figure, high: Figure | None = None) -> list[Series]:
    """For each ensemble a line with a band up to `high`, and a dashed one to compare it with."""
    series: list[Series] = []
    for color, name in enumerate(found.ensembles):
        starts = found.of(name)
        line = partial(Series, x=[start.scale for start in starts], color=color)
        y = [own(start) for start in starts]
        band: Any = {"low": y, "high": [high(start) for start in starts]} if high else {}
        series.append(line(label=name, y=y, style="marked", **band))
        series.append(line(label="", y=[other(start) for start in starts], style="dashed"))
    return series
