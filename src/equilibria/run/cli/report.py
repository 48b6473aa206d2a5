"""Write one page about a run, or one that compares several: learning curves, how the solves
converge, what they cost, how stable they are, the memory of a training step, and the doctor's
findings; of a single run also what `equilibria gradients` and `equilibria depth` have measured and,
if it is on images, the figures of each class, and some test images with what the network makes of
them. The page is a single self-contained HTML file that needs no network. Runs that have not been
examined are examined first, as `equilibria doctor` does, which may take minutes; --no-doctor skips
that, and --no-gallery skips the test images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from equilibria import files
from equilibria.run import gallery, run
from equilibria.run import recipe as recipes
from equilibria.run.checkpoint import CheckpointError
from equilibria.run.cli import depth, doctor, gradients
from equilibria.run.cli.output import Output, say
from equilibria.run.cli.parser import Parser, UserError
from equilibria.run.data import DataError, storage
from equilibria.run.memory import MemoryPoint
from equilibria.run.records import Adjoints, Depths, EvaluationRecord, OfWeights
from equilibria.run.report import page
from equilibria.run.weights import checksum
from equilibria.stability import Examination

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
    parser.add_argument(
        "--no-doctor",
        action="store_true",
        help="do not examine runs that have not been examined; the page says so",
    )
    parser.add_argument(
        "--no-gallery",
        action="store_true",
        help="do not look at test images again for a gallery of predictions; the page says so",
    )
    parser.add_data_dir()
    arguments = parser.parse_args(list(argv))
    folders, console = [Path(name) for name in arguments.runs], Output(quiet=arguments.quiet)
    path = draw(
        folders,
        Path(arguments.out) if arguments.out else None,
        data_dir=arguments.data_dir,
        examine=not arguments.no_doctor,
        pictures=not arguments.no_gallery,
        console=console,
    )
    console.finish(f"Open {path} in a browser.", path)


def draw(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    data_dir: Path | None = None,
    examine: bool = True,
    pictures: bool = True,
    console: Console,
) -> Path:
    """Write the page about the runs in `folders` and return where it is.

    Runs that have not been examined since their weights were last written are examined first,
    unless that cannot be done, such as without their data.

    Args:
        folders: run folders, each once.
        out: file to write; by default report.html in the folder of a single run, or
            comparison.html in the working directory.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.
        examine: whether to examine what has not been examined.
        pictures: whether to look at test images of a single run whose gallery has not been made.
        console: where to report what takes time, and what is missing.

    Raises:
        UserError: a folder is named twice, or holds a run without a finished epoch.
        RunError: a folder is not a run, or a file in it is damaged.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run is named twice: name each folder once")
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    if out is None and len(folders) == 1:
        run.Folder(folders[0]).check_writable()
    measured = [
        {"name": name, **_collect(folder, data_dir, examine, console)}
        for name, folder in zip(names, folders, strict=True)
    ]
    if len(folders) == 1:
        measured[0] |= _gallery(run.Folder(folders[0]), data_dir, pictures, console)
    if out is None:
        out = folders[0] / FILE if len(folders) == 1 else Path("comparison.html")
    files.write_text(out, page(measured))
    return out


def _collect(path: Path, data_dir: Path | None, examine: bool, console: Console) -> dict[str, Any]:
    """What the page shows about a run."""
    folder = run.Folder(path)
    recipe = folder.read_recipe()
    metrics = folder.read_metrics()
    if not metrics:
        raise UserError(
            f"{path} has no finished epoch yet: there is nothing to report. "
            f"Continue the run with `{folder.resume}`"
        )
    # Whatever is damaged is found before an examination that takes minutes.
    evaluation = _read(folder.evaluation, EvaluationRecord, f"equilibria evaluate {path}")
    points = _read(folder.memory, list[MemoryPoint], f"equilibria memory {path}")
    compared = _read_current(folder, gradients.FILE, Adjoints, "gradients")
    depths = _read_current(folder, depth.FILE, Depths, "depth")
    about = folder.read_info() if folder.info.exists() else None
    seen = recipe.task.read_classes(path)
    examination, unexamined = None, ""
    if recipe.model.implicit:
        examination, unexamined = _examination(folder, data_dir, examine, console)
    if unexamined:
        said = f"{path} is reported without the doctor's findings: {unexamined}"
        say(console, said)
    if not points:
        say(
            console,
            f"{path} is reported without the memory of a training step, which has not been "
            f"measured: run equilibria memory {path}",
        )
    step = metrics[-1].get("step")
    if evaluation is not None and evaluation.get("step", step) != step:
        evaluation = None  # of weights that were trained on since
    return {
        "metrics": metrics,
        "evaluation": evaluation,
        "memory": points,
        "gradients": compared,
        "depth": depths,
        "examination": examination,
        "unexamined": unexamined,
        "recipe": recipes.dump(recipe),
        "about": about,
        "seen": seen,
    }


def _gallery(
    folder: run.Folder, data_dir: Path | None, make: bool, console: Console
) -> dict[str, Any]:
    """Test images with what the network makes of them, looked at if need be; or why there are none.

    Nothing of a run whose samples cannot be drawn.
    """
    if not gallery.has_pictures(folder):
        return {}
    if (known := gallery.read(folder)) is not None:
        return {"gallery": known}
    if not make:
        return {"unpictured": "--no-gallery skipped it; leave that option out to make up for it"}
    say(
        console,
        f"{folder.path} has no gallery of these weights yet: the network looks at test images "
        "first. That takes seconds for a small network and minutes for a large one; --no-gallery "
        "skips it.",
    )
    try:
        return {"gallery": gallery.hang(run.load(folder.path, data_dir=data_dir))}
    except (DataError, run.RunError, CheckpointError, OSError) as error:
        say(console, f"{folder.path} is reported without test images: {error}")
        return {"unpictured": str(error)}


def _examination(
    folder: run.Folder, data_dir: Path | None, examine: bool, console: Console
) -> tuple[dict[str, Any] | None, str]:
    """The doctor's examination of the weights as they are, made if need be; or why there is none.

    Raises:
        RunError: doctor.json is damaged.
    """
    path, command = folder.path / doctor.FILE, f"equilibria doctor {folder.path}"
    if _current(path, folder.weights):
        return {"findings": [], **_read(path, Examination, command)}, ""
    if not examine:
        return None, f"--no-doctor skipped it; make up for it with {command}"
    since = " since it was last trained" if path.exists() else " yet"
    say(
        console,
        f"{folder.path} has not been examined{since}: the doctor examines it first. That takes "
        "seconds for a small network and minutes for a large one; --no-doctor skips it.",
    )
    try:
        loaded = run.load(folder.path, data_dir=data_dir)
        return doctor.examine(loaded, quiet=console.quiet).json(), ""
    except (DataError, run.RunError, CheckpointError) as error:
        return None, str(error)


def _read_current(folder: run.Folder, file: str, shape: Any, command: str) -> Any:
    """What a command measured of the weights as they are; None where that was not done.

    Raises:
        RunError: the file is damaged.
    """
    path = folder.path / file
    if not _current(path, folder.weights):
        return None
    return _read(path, shape, f"equilibria {command} {folder.path}")


def _current(path: Path, weights: Path) -> bool:
    """Whether what was measured is of these weights; for what does not say, by its date."""
    known = checksum(weights)
    said = _read(path, OfWeights) or {}
    if known is not None and said.get("weights") is not None:
        return said["weights"] == known
    return path.is_file() and (
        not weights.exists() or path.stat().st_mtime >= weights.stat().st_mtime
    )


def _read(path: Path, shape: Any, command: str = "") -> Any:
    """The content of a JSON file; None if there is none.

    Raises:
        RunError: it is damaged, or of another shape; with the command that makes it again.
    """
    try:
        return storage.read(path, shape, spelt=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        remedy = f"Make it again: {command}" if command else "Delete it to report without it"
        raise run.RunError(f"{path} is damaged: {reason}. {remedy}") from None
