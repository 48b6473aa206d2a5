"""Recommend initial weights for a recipe: which ensemble, and at which scale.

The recurrent weights of the recipe's own model are drawn from each ensemble at each scale, and a
batch of its training data is solved: how many samples converge with the recipe's solver and with
plain iteration, in how many evaluations, and with which spectral radius at z*, compared with the
prediction for wide networks where the theory covers the cell. The largest radius over the samples
counts, as for the key `initialisation.radius`. Table, recommendation, figure and page are written
to a folder. Nothing is trained. Every key of the recipe is also an option, as for `train`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from equilibria import files
from equilibria.cli.initialise_figure import panels
from equilibria.cli.initialise_table import show, subject, table
from equilibria.cli.output import Output
from equilibria.cli.parser import Parser, UserError, named_data
from equilibria.nn.init import ENSEMBLES
from equilibria.report import start_page
from equilibria.report.svg import picture
from equilibria.stability.ensembles import Recommendation, Sweep, recommend
from equilibria.stability.ensembles.measure import DRAWS, SCALES
from equilibria.train import device as devices
from equilibria.train import recipe as recipes
from equilibria.train import start
from equilibria.train.config import as_chosen
from equilibria.train.run import environment

OUT = Path("results") / "initialise"
JSON, FIGURE, PAGE = "initialise.json", "initialise.svg", "initialise.html"
STEPS = 9
"""Scales between two ends where no other count is asked for, the ends among them."""


def main(argv: Sequence[str]) -> None:
    """Run `equilibria initialise` with the words `argv`."""
    parser = _parser()
    own, overrides = parser.split(argv)
    arguments = parser.parse_args(own)
    name = arguments.recipe
    devices.device(arguments.device)  # is it there? Before any data are read
    recipe = recipes.load(name, overrides)
    if arguments.data is not None:
        overrides = [*overrides, *named_data(arguments.data, recipe.task)]
        recipe = recipes.load(name, overrides)
    for option in ("draws", "samples"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} must be 1 or more; got {value}")
    scales = _scales(arguments.scales)
    folder = Path(arguments.out or OUT / Path(name).stem)
    _check_free(folder, arguments.fresh)
    console = Output(quiet=arguments.quiet, width=100)
    with as_chosen():
        task = recipe.task.load(arguments.data_dir)
    bar = Progress(
        TextColumn("Solving"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=arguments.quiet or not console.is_terminal,
    )
    with bar as progress, as_chosen():
        ticket = progress.add_task("", total=None)
        found = start.examine_start(
            recipe,
            task,
            ensembles=arguments.ensembles,
            scales=scales,
            draws=arguments.draws,
            samples=arguments.samples,
            progress=lambda done, of: progress.update(ticket, completed=done, total=of),
            device=arguments.device,
        )
    advice = recommend(found)
    command = _command(name, overrides, advice, arguments.data_dir) if advice.workable else None
    where = write(folder, recipe, found, advice, command=command, source=task.source)
    show(console, found, advice, command)
    console.done(f"Written to {' and '.join(map(str, where))}.", where[0])


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
        type=str,
        nargs="+",
        default=[f"{scale:g}" for scale in SCALES],
        metavar="SCALE",
        help="scales to try, sqrt(V), the root mean square of the singular values: numbers, or "
        f"geometric series LOW:HIGH (of {STEPS}) or LOW:HIGH:COUNT "
        f"(default: {' '.join(f'{s:g}' for s in SCALES)})",
    )
    parser.add_argument(
        "--draws", type=int, default=DRAWS, help=f"weight draws per scale (default: {DRAWS})"
    )
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
        "--data", type=str, help="text file or folder of images, or name of a data set"
    )
    parser.add_data_dir()
    parser.add_device()
    return parser


def _scales(words: Sequence[str]) -> list[float]:
    """The scales that words such as `.5`, `.1:2` and `.1:2:5` name.

    Raises:
        UserError: one is neither a number nor a series, or not positive and finite.
    """
    return [scale for word in words for scale in _row(word)]


def _row(word: str) -> list[float]:
    parts = word.split(":")
    try:
        low, high = float(parts[0]), float(parts[min(1, len(parts) - 1)])
        count = int(parts[2]) if len(parts) > 2 else STEPS
        if len(parts) > 3 or count < 2:
            raise ValueError
    except ValueError:
        raise UserError(
            "--scales must be numbers, or series LOW:HIGH or LOW:HIGH:COUNT with COUNT 2 or more; "
            f"got '{word}'"
        ) from None
    for scale in (low, high):
        if not 0 < scale < float("inf"):
            raise UserError(f"--scales must be positive and finite; got {scale:g}")
    if len(parts) == 1:
        return [low]
    if low >= high:
        raise UserError(f"--scales LOW:HIGH needs LOW below HIGH; got '{word}'")
    ratio = (high / low) ** (1 / (count - 1))
    return [float(f"{low * ratio**i:.3g}") for i in range(count)]


def _check_free(folder: Path, fresh: bool) -> None:
    """Check that nothing is overwritten.

    Raises:
        UserError: the folder holds something other than what is to be replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder with --out")
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there - {JSON, FIGURE, PAGE}:
        raise UserError(
            f"{folder} exists and holds other files: name an empty or new folder with --out"
        )
    if there and not fresh:
        raise UserError(
            f"{folder} already holds results, which are not overwritten: replace them with "
            "--fresh, or name another folder with --out"
        )


def _command(
    name: str, overrides: Sequence[str], advice: Recommendation, data_dir: Path | None
) -> str:
    """The command that trains as recommended, each key in it once."""
    options: dict[str, list[str]] = {}
    key = ""
    for word in overrides:
        if word.startswith("--"):
            key = word.removeprefix("--").partition("=")[0].replace("-", "_")
            options.pop(key, None)  # the last one counts
        options.setdefault(key, []).append(word)
    for replaced in ("name", "ensemble", "scale", "radius"):
        options.pop(f"initialisation.{replaced}", None)
    kept = [word for words in options.values() for word in words]
    begins = recipes.load(name, kept).initialisation
    words = ["equilibria", "train", name, *kept, *advice.options.split()]
    if begins is not None and begins.radius is not None:
        words += ["--initialisation.radius", "null"]
    if data_dir is not None:
        words += ["--data-dir", str(data_dir)]
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
        folder: created if missing.
        recipe: whose initial weights were examined.
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
    svg = picture(panels(found))
    files.write_text(folder / FIGURE, svg)
    head, rows = table(found)
    files.write_text(
        folder / PAGE,
        start_page(
            name=folder.name,
            description=recipe.description,
            about=subject(found),
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
