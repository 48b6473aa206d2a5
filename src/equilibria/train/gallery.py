"""Some test images of a run with what its network makes of them, kept in the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equilibria.models import EquilibriumModel, Model
from equilibria.models.vision.dense_head import upsampled
from equilibria.models.vision.inference import masks_of
from equilibria.tasks import Batch, Task
from equilibria.tasks.classification import ClassificationTask
from equilibria.tasks.normalisation import Statistics
from equilibria.tasks.segmentation import SegmentationTask
from equilibria.train import files
from equilibria.train.evaluation import evaluating
from equilibria.train.pictures import coloured, image_png, numbers_png, size_to_look_at
from equilibria.train.run import Folder, Run, RunError
from equilibria.train.settling import Settling, settling
from equilibria.train.weights import checksum

__all__ = ["FOLDER", "hang", "has_pictures", "read"]

FOLDER = "gallery"
"""The folder, in that of the run, that holds the PNG files and what they show."""

_FILE = "gallery.json"
_EACH = 3
"""Mistakes that are shown of a classifier, and right answers."""

_SCENES = 4
"""Images that are shown of a segmentation network."""

_LOOKED_AT = 1_000
"""Test images that mistakes are looked for in, at most."""

_BATCH = 50
"""Test images that are looked at together, at most."""

_LISTED = 3
"""Classes whose probability is told."""

_VERSION = 1


@dataclass
class _Hanging:
    """What is being collected: the pictures with their files, and maps that share one scale."""

    pictures: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    maps: list[tuple[dict[str, Any], Tensor, tuple[int, int]]] = field(default_factory=list)

    def add(
        self, about: dict[str, Any], settled: Settling | None, size: tuple[int, int], **png: bytes
    ) -> None:
        """Add a picture.

        Args:
            about: what is told of it.
            settled: how its solve went.
            size: of its files, in pixels.
            png: files by what they show.
        """
        place = len(self.pictures)
        names = {what: f"{place}-{what}.png" for what in png}
        self.files.update({names[what]: content for what, content in png.items()})
        solve = None
        if settled is not None:
            solve = {"evals": settled.evals, "status": settled.status.name}
            if settled.after is not None:
                self.maps.append((names, settled.after, size))
                names["late"] = f"{place}-late.png"
        self.pictures.append({**about, "files": names, "solve": solve})

    def scale(self) -> dict[str, Any] | None:
        """Draw the maps in colours that mean the same in all; return which number has which."""
        if not self.maps:
            return None
        low = min(int(after.min()) for _, after, _ in self.maps)
        high = max(int(after.max()) for _, after, _ in self.maps)
        colours = coloured(high - low + 1)
        # A palette has 256 colours: of more numbers, neighbours share one.
        step = -(-len(colours) // 255)
        for names, after, size in self.maps:
            self.files[names["late"]] = numbers_png((after - low) // step, colours[::step], size)
        return {"low": low, "high": high, "colours": [_hex(colour) for colour in colours]}


def has_pictures(folder: Folder) -> bool:
    """Whether a run is on images, so that it can have a gallery."""
    return folder.images.is_file()


def read(folder: Folder) -> dict[str, Any] | None:
    """Return the gallery of a run as `hang` does; None where there is none of its weights."""
    place = folder.path / FOLDER
    try:
        content = files.from_json((place / _FILE).read_text("utf-8"))
        known, data = checksum(folder.weights), folder.read_info().get("data")
        if (content["version"], content["weights"], content["data"]) != (_VERSION, known, data):
            return None
        for picture in content["pictures"]:
            names = picture["files"].items()
            picture["files"] = {what: (place / name).read_bytes() for what, name in names}
        return content
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RunError):
        return None  # it is made again


def hang(loaded: Run) -> dict[str, Any] | None:
    """Look at some test images of a run, and write them into its folder.

    Of a classifier, some mistakes and some right answers are shown, the first of the test images in
    an order that is random and always the same. Of a segmentation network, images are spread
    evenly over the test images. Where the model solves for an equilibrium that has places, there is
    a map of the evaluations after which each place stays near z*; see `settled_after`.

    Args:
        loaded: the run, with its data, on the CPU.

    Returns:
        `kind`, "classification" or "segmentation"; `split`; `count`, of the images in it; `seen`,
        of those that were looked at, and `wrong` among them; `rtol`; `scale`, numbers and colours
        of the maps; `classes`, names and colours of those in the masks shown; and `pictures`, each
        with its `name` or `truth` and `told`, `solve` and `files`, the bytes of PNG files by what
        they show: "image", "truth", "told", "late". None where nothing can be shown.

    Raises:
        OSError: the folder cannot be written.
    """
    task, model = loaded.data, loaded.model
    with torch.no_grad(), evaluating(model):
        found = _hung(task, model, min(_BATCH, loaded.recipe.eval_batch_size))
    if found is None:
        return None
    hanging, about = found
    content = {
        "version": _VERSION,
        "weights": checksum(Folder(loaded.folder).weights),
        "data": task.checksum,
        "split": "test",
        "rtol": _rtol(model),
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


def _hung(task: Task, model: Model, batch: int) -> tuple[_Hanging, dict[str, Any]] | None:
    if isinstance(task, ClassificationTask) and task.shape[0] in (1, 3):
        return _classified(task, model, batch)
    if isinstance(task, SegmentationTask):
        return _segmented(task, model)
    return None


def _classified(
    task: ClassificationTask, model: Model, batch: int
) -> tuple[_Hanging, dict[str, Any]]:
    samples = task.samples["test"]
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
    wrong: list[tuple[Tensor, Tensor, int]] = []
    right: list[tuple[Tensor, Tensor, int]] = []
    seen = mistakes = 0
    for places in order[:_LOOKED_AT].split(batch):
        inputs, targets, *_ = Batch.of(samples, places)
        chances = model(inputs).output.float().softmax(1)
        correct = chances.argmax(1) == targets
        seen, mistakes = seen + len(places), mistakes + int((~correct).sum())
        for row, good in enumerate(correct.tolist()):
            kept = right if good else wrong
            if len(kept) < 2 * _EACH:
                kept.append((inputs[row], chances[row], int(targets[row])))
        if min(len(wrong), len(right)) >= _EACH:
            break
    some = wrong[: max(_EACH, 2 * _EACH - len(right))]
    hanging = _Hanging()
    for image, chance, target in (*some, *right[: 2 * _EACH - len(some)]):
        best = chance.topk(min(_LISTED, len(chance)))
        told = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        about = {
            "truth": task.labels[target],
            "told": [[task.labels[place], value] for place, value in told],
        }
        size = size_to_look_at(*image.shape[1:])
        png = image_png(_as_it_was(image, task.statistics), size)
        hanging.add(about, settling(model, image[None], _rtol(model)), size, image=png)
    about = {"kind": "classification", "count": len(samples), "seen": seen, "wrong": mistakes}
    return hanging, about


def _segmented(task: SegmentationTask, model: Model) -> tuple[_Hanging, dict[str, Any]] | None:
    images = task.images["test"]
    count = min(_SCENES, len(images))
    hanging, shown = _Hanging(), set[int]()
    for place in range(count):
        place = (2 * place + 1) * len(images) // (2 * count)
        inputs, targets, *_ = task.batch_of(images, [place])
        output = model(inputs).output
        if isinstance(output, dict) and "masks" not in output:
            return None  # it tells which classes are there, not where
        mask = targets[0]
        told = upsampled(masks_of(output).float(), mask.shape).argmax(1)[0]
        known = mask < task.classes
        shown.update(told.unique().tolist(), mask[known].unique().tolist())
        right = int((told == mask)[known].sum()) / max(1, int(known.sum()))
        size = size_to_look_at(*mask.shape)
        hanging.add(
            {"name": images.names[place], "right": right},
            settling(model, inputs, _rtol(model)),
            size,
            image=image_png(_as_it_was(inputs[0], task.statistics), size),
            truth=numbers_png(mask, task.colours, size),
            told=numbers_png(told, task.colours, size),
        )
    classes = [[task.labels[k], _hex(task.colours[k])] for k in sorted(shown)]
    about = {"kind": "segmentation", "count": len(images), "seen": count, "classes": classes}
    return hanging, about


def _as_it_was(image: Tensor, statistics: Statistics | None) -> Tensor:
    """An image (channels, height, width) before it was normalised."""
    if statistics is None:
        return image
    mean, deviation = (
        torch.tensor(each)[:, None, None] for each in (statistics.mean, statistics.deviation)
    )
    return image * deviation + mean


def _rtol(model: Model) -> float:
    """The relative tolerance of the solver that evaluates; 0 of an explicit network."""
    if not isinstance(model, EquilibriumModel):
        return 0.0
    return (model.deq.eval_solver or model.deq.solver).finest


def _hex(colour: Sequence[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
