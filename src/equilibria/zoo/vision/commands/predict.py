"""Classify or segment images with a trained network. IMAGES are files, folders, of which all
images are taken, and glob patterns in quotes.

For each image a row is written to predictions.jsonl in the folder --out and, at the end, to
predictions.csv: the prediction, and the status, the evaluations and the residual of its solve. For
segmentation, masks/ has a palette PNG for each image, of the image's size, and overlays/ the mask
blended over the image. A file that cannot be read gets a row with the error, and the rest go on.
The same command again continues where it was stopped, whatever stopped it.

For segmentation, images much larger than those of the training are processed in overlapping
windows; --window sets their size.

With --video, images are the frames of a video, in natural order: each solve starts from the
equilibrium of the previous frame. They are seen one by one, and whole.

The exit status is 75 after a signal, with all rows saved, 1 if no image could be read or after an
error, and otherwise 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equilibria.run import evaluation, neural, run, stops
from equilibria.run.cli.options import LEARNED, add_solver, solve_by
from equilibria.run.cli.output import Output, progress_bar
from equilibria.run.cli.parser import Parser, ResumableStop, UserError, check_least
from equilibria.run.cli.status import DONE, ERROR
from equilibria.run.recipe import Recipe
from equilibria.run.weights import checksum
from equilibria.solve import Status
from equilibria.words import others
from equilibria.zoo.io.naming import pictures
from equilibria.zoo.io.rows import Journal, journal
from equilibria.zoo.vision.commands.views import Views
from equilibria.zoo.vision.model.config import VisionConfig
from equilibria.zoo.vision.predict import Large, PredictOptions, predict
from equilibria.zoo.vision.task.seen import IMAGES, ImageFormat

LESS_MEMORY = "lower --batch-size, or have large images seen through a smaller --window"
"""What to do where the memory does not suffice."""

LARGE = 1.5
"""Images for segmentation that are larger than so many times what training has shown are seen
through windows of that size."""


VIEWS = Views()


def _parse(argv: Sequence[str]) -> Any:
    parser = Parser("predict", __doc__)
    parser.add_argument("run", type=Path, help="run folder, for example runs/mdeq-images")
    parser.add_argument(
        "images", type=str, nargs="+", help="files, folders, or glob patterns in quotes"
    )
    parser.add_argument(
        "--out", type=Path, help="folder to write to (default: predictions in the run folder)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="start again, and delete earlier predictions there"
    )
    parser.add_number("--batch-size", 16, "images per batch, all of one size")
    parser.add_argument(
        "--top", type=int, help="classification: most probable classes per row (default: 5)"
    )
    parser.add_argument("--no-overlays", action="store_true", help="segmentation: write masks only")
    parser.add_argument(
        "--video", action="store_true", help="treat the images as consecutive frames of a video"
    )
    add_solver(parser)
    VIEWS.add_to(parser)
    parser.add_device()
    arguments = parser.parse_args(list(argv))
    check_least(arguments, batch_size=1, top=1)
    return arguments


def _check(arguments: Any, recipe: Recipe, views: Mapping[str, Any], masks: bool) -> None:
    """Raise UserError for options that a run has no use for.

    Args:
        arguments: as `_parse` returns them.
        recipe: of the run.
        views: how images are seen.
        masks: whether the network predicts a mask for each image.
    """
    if arguments.video and (views or not recipe.model.implicit):
        what = f"--{next(iter(views))}" if views else f"{type(recipe.model).__name__}"
        raise UserError(
            f"--video starts each solve at the equilibrium of the frame before, which {what} does "
            "not have: leave one of the two out"
        )
    if masks and arguments.top is not None:
        raise UserError("--top is for classification, and this run predicts masks: leave it out")
    if not masks and arguments.no_overlays:
        raise UserError(
            "--no-overlays is for segmentation, and this run predicts the class of each image: "
            "leave it out"
        )


def main(argv: Sequence[str]) -> int:
    """Run `equilibria predict` with the words `argv` and return the exit status."""
    arguments = _parse(argv)
    folder = run.Folder(arguments.run)
    recipe = folder.read_recipe()
    if not (isinstance(recipe.model, VisionConfig) or (folder.path / IMAGES).is_file()):
        raise UserError(
            f"predict is for networks on images, and {folder.path} has another, "
            f"{recipe.model.title}: name a run on images"
        )
    views = VIEWS.changes_of(arguments, recipe)
    seen = ImageFormat.read(folder.path / IMAGES)
    masks = seen.kind == "segmentation" and "masks" in getattr(recipe.model, "heads", ("masks",))
    _check(arguments, recipe, views, masks)
    out = arguments.out or folder.path / "predictions"
    paths = pictures(arguments.images, without=out)
    wanted = {str(path) for path in paths}
    loaded = run.load(folder.path, data=False)
    solver = solve_by(arguments.solver, loaded)
    accelerator = evaluation.accelerator(recipe.precision, arguments.device)
    console = Output(quiet=arguments.quiet)
    model, large = VIEWS.view(loaded.model.to(accelerator.device), views), None
    if masks and "window" not in views and not arguments.video:
        high, wide = (round(LARGE * side) for side in seen.shape[1:])
        window = {"window": (high, wide), "overlap": min(high, wide) // 4}
        large = Large(VIEWS.view(loaded.model, {**views, **window}), (high, wide))
    options = PredictOptions(
        batch_size=arguments.batch_size,
        top=arguments.top or PredictOptions.top,
        overlays=not arguments.no_overlays,
        video=arguments.video,
    )
    about = {
        "run": str(folder.path.absolute()),
        "weights": checksum(folder.weights),
        "top": options.top,
        "overlays": options.overlays,
        "video": options.video,
        "views": {**views, **solver},
    }
    if solver.get("solver") == LEARNED:
        about["learned_solver"] = neural.identity(folder)
    with (
        stops.catch() as signals,
        journal(out, about, overwrite=arguments.overwrite) as rows,
        signals.defer(),
        progress_bar(console) as bar,
    ):
        begun = len(rows.done & wanted)
        if begun:
            console.print(f"{begun:,} of {len(paths):,} images already have a row", markup=False)
        shown = bar.add_task("Images", total=len(paths), completed=begun)
        finished = predict(
            model,
            seen,
            paths,
            rows,
            accelerator,
            options,
            large=large,
            smallest=recipe.model.min_size if isinstance(recipe.model, VisionConfig) else 1,
            progress=lambda count: bar.advance(shown, count),
            stop=lambda: bool(signals.received),
        )
        rows.tabulate()
    if not finished:
        raise ResumableStop(
            f"stopped after {len(rows.done & wanted):,} of {len(paths):,} images; all rows are "
            f"saved in {rows.rows}; the same command continues"
        )
    return _summary(rows, wanted, console)


def _summary(rows: Journal, wanted: set[str], console: Output) -> int:
    """Say what was found, and return the exit status."""
    read, errors, evaluations, missed = 0, list[str](), list[int](), 0
    for row in rows.read():
        if row["path"] not in wanted:
            continue
        if row["result"] == "error":
            errors.append(row["error"])
            continue
        read += 1
        if "evaluations" in row:
            evaluations.append(row["evaluations"])
            missed += row["status"] != Status.CONVERGED.name
    if errors:
        console.print(
            f"{len(errors):,} of {len(wanted):,} images could not be read: "
            f"{errors[0]}{others(errors)}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    if evaluations:
        console.print(
            f"{sum(evaluations) / len(evaluations):.1f} evaluations per image"
            + (
                f"; {missed:,} of {read:,} solves did not converge" if missed else ", all converged"
            ),
            markup=False,
            highlight=False,
        )
    console.finish(f"{read:,} of {len(wanted):,} images predicted: {rows.table}", rows.table)
    return DONE if read else ERROR
