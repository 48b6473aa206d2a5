"""Write one page about a run, or one that compares several: learning curves, how the solves
converge, what they cost, how stable they are, the memory of a training step, and the doctor's
findings. The page is a single self-contained HTML file that needs no network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from equilibria.cli import doctor
from equilibria.cli.parser import Parser, UserError
from equilibria.data import DataError
from equilibria.report import page
from equilibria.train import files, run
from equilibria.train import recipe as recipes

FILE = "report.html"


def main(argv: Sequence[str]) -> None:
    """Run `equilibria report` with the words `argv`."""
    parser = Parser("report", __doc__)
    parser.add_argument(
        "runs", type=str, nargs="+", help="run folders, for example runs/digits runs/digits-wide"
    )
    parser.add_argument(
        "--out",
        type=str,
        help="file to write (default: report.html in the run folder; comparison.html for several)",
    )
    parser.add_data_dir()
    arguments = parser.parse_args(list(argv))
    folders = [Path(name) for name in arguments.runs]
    path = draw(
        folders,
        Path(arguments.out) if arguments.out else None,
        data_dir=arguments.data_dir,
        console=(console := Console()),
    )
    console.print(f"Open {path} in a browser.", soft_wrap=True, markup=False)


def draw(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    data_dir: Path | None = None,
    console: Console,
) -> Path:
    """Write the page about the runs in `folders` and return where it is.

    Runs that have not been examined since their weights were last written are examined first,
    unless their data are unavailable.

    Args:
        folders: run folders, each once.
        out: file to write; by default report.html in the folder of a single run, or
            comparison.html in the working directory.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.
        console: where to report what takes time.

    Raises:
        UserError: a folder is named twice, or holds a run without a finished epoch.
        RunError: a folder is not a run, or a file in it is damaged.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run is named twice: name each folder once")
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    measured = [
        {"name": name, **_collect(folder, data_dir, console)}
        for name, folder in zip(names, folders, strict=True)
    ]
    if out is None:
        out = folders[0] / FILE if len(folders) == 1 else Path("comparison.html")
    files.write_text(out, page(measured))
    return out


def _collect(path: Path, data_dir: Path | None, console: Console) -> dict[str, Any]:
    """What the page shows about a run."""
    folder = run.Folder(path)
    if not path.is_dir():
        raise run.RunError(f"there is no run folder {path}")
    recipe = folder.read_recipe()
    metrics = folder.read_metrics()
    if not metrics:
        raise UserError(
            f"{path} has no finished epoch yet: there is nothing to report. "
            "Continue the run with `equilibria train ... --resume`"
        )
    examination = path / doctor.FILE
    examined = _newer(examination, folder.weights)
    if not examined and recipe.model.implicit:
        with console.status(f"Examining {path} ..."):
            try:
                doctor.examine(run.load(path, data_dir=data_dir))
                examined = True
            except DataError as error:
                console.print(
                    f"{path} is reported without the doctor's findings: {error}", markup=False
                )
    points = _read(folder.memory)
    if not points:
        console.print(
            f"{path} is reported without the memory of a training step, which has not been "
            f"measured: run equilibria memory {path}",
            soft_wrap=True,
            markup=False,
        )
    return {
        "metrics": metrics,
        "evaluation": _read(folder.evaluation),
        "memory": points,
        "examination": _read(examination) if examined else None,
        "recipe": recipes.dump(recipe),
        "about": _read(folder.info),
    }


def _newer(path: Path, than: Path) -> bool:
    return path.is_file() and path.stat().st_mtime >= than.stat().st_mtime


def _read(path: Path) -> Any:
    """The content of a JSON file; None if there is none."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise run.RunError(f"{path} is damaged: {error}. Delete it to recreate it") from None
