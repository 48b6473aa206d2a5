"""Some test images of a run with what its network makes of them, kept in the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from equilibria import files
from equilibria.data import stored
from equilibria.data.regular import read_bytes
from equilibria.models import Model
from equilibria.tasks import Task
from equilibria.tasks.classification import ClassificationTask
from equilibria.tasks.flow import FlowTask, OpticalFlow
from equilibria.tasks.representation import SIGNAL, Described, GridTask, ShapeTask
from equilibria.tasks.segmentation import SegmentationTask
from equilibria.train.evaluation import evaluating
from equilibria.train.gallery.classified import classified
from equilibria.train.gallery.flowing import flowing
from equilibria.train.gallery.hanging import Hanging, rtol_of
from equilibria.train.gallery.represented import represented
from equilibria.train.gallery.segmented import segmented
from equilibria.train.run import Folder, Run, RunError
from equilibria.train.shapes import GALLERIES
from equilibria.train.weights import checksum

__all__ = ["FOLDER", "hang", "has_pictures", "read"]

FOLDER = "gallery"
"""The folder, in that of the run, that holds the PNG files and what they show."""

_FILE = "gallery.json"

_BATCH = 50
"""Test images that are looked at together, at most."""

_VERSION = 1


def has_pictures(folder: Folder) -> bool:
    """Whether a run is on images, so that it can have a gallery."""
    if (folder.path / SIGNAL).is_file():
        return Described.read(folder.path).field.kind != "sound"
    return folder.images.is_file() or isinstance(folder.read_recipe().task, OpticalFlow)


def read(folder: Folder) -> dict[str, Any] | None:
    """Return the gallery of a run as `hang` does; None where there is none of its weights."""
    place = folder.path / FOLDER
    try:
        content = stored.read(place / _FILE, dict[str, Any], spelt=True)
        stored.check(content, GALLERIES[content["kind"]])
        known, data = checksum(folder.weights), folder.read_info().get("data")
        if (content["version"], content["weights"], content["data"]) != (_VERSION, known, data):
            return None
        for picture in content["pictures"]:
            if not picture.get("told", True):
                return None
            names = picture["files"].items()  # of files in this folder, and nowhere else
            found = {what: read_bytes(place / Path(name).name, stored.MOST) for what, name in names}
            picture["files"] = found
        return content
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RunError):
        return None  # it is made again


def hang(loaded: Run) -> dict[str, Any] | None:
    """Look at some test images of a run, and write them into its folder.

    Of a classifier, some mistakes and some right answers are shown, the first of the test images in
    an order that is random and always the same. Of a segmentation network, images are spread
    evenly over the test images. Where the model solves for an equilibrium that has places, there is
    a map of the evaluations after which each place stays near z*; see `settled_after`. Of a network
    for optical flow, pairs are spread evenly too, with their error and, at equilibrium, what one
    more evaluation changes. Of a network that represents a signal, the image, some frames of the
    film or sections through the shape are shown, with the error and the evaluations of each point.

    Args:
        loaded: the run, with its data, on the CPU.

    Returns:
        `kind`, "classification", "segmentation", "flow" or "signal"; `split`; `count`, of the
        images in it;
        `seen`, of those that were looked at, and `wrong` among them; `rtol`; `scale`, numbers and
        colours of the maps; `classes`, names and colours of those in the masks shown; `pixels`,
        the flow that is saturated; `signal`, "image", "film" or "shape", `black`, the error that is
        black, and `constant`, whether the mean has been taken from the original; and `pictures`,
        each with its `name` or `truth` and `told`,
        `solve` and `files`, the bytes of PNG files by what they show: "image", "truth", "told",
        "late", and of flow "second", "error", "moves". None where nothing can be shown.

    Raises:
        OSError: the folder cannot be written.
    """
    task, model = loaded.data, loaded.model
    with torch.no_grad(), evaluating(model):
        found = _hung(task, model, loaded.recipe.eval_batch_size)
    if found is None:
        return None
    hanging, about = found
    content = {
        "version": _VERSION,
        "weights": checksum(Folder(loaded.folder).weights),
        "data": task.checksum,
        "split": "test",
        "rtol": rtol_of(model),
        **about,
        "scale": hanging.scale(),
        "pictures": hanging.pictures,
    }
    _write(loaded.folder / FOLDER, content, hanging.files)
    for picture in hanging.pictures:
        picture["files"] = {what: hanging.files[n] for what, n in picture["files"].items()}
    return content


def _write(place: Path, content: Mapping[str, Any], pictures: Mapping[str, bytes]) -> None:
    shutil.rmtree(place, ignore_errors=True)  # of other weights
    text = files.to_json(content, indent=2) + "\n"
    files.write_folder(place, {**pictures, _FILE: text.encode()})


def _hung(task: Task, model: Model, batch: int) -> tuple[Hanging, dict[str, Any]] | None:
    if isinstance(task, ClassificationTask) and task.shape[0] in (1, 3):
        return classified(task, model, min(_BATCH, batch))
    if isinstance(task, SegmentationTask):
        return segmented(task, model)
    if isinstance(task, GridTask | ShapeTask):
        return represented(task, model, batch)
    if isinstance(task, FlowTask):
        return flowing(task, model)
    return None
