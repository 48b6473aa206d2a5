"""Test images under the masks of a segmentation network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equilibria.run.gallery.kind import (
    GalleryKind,
    Hanging,
    Picture,
    Stored,
    as_it_was,
    hex_of,
    rtol_of,
    settling,
)
from equilibria.run.models import Model
from equilibria.run.pictures import image_png, numbers_png, size_to_look_at
from equilibria.words import percent, plural
from equilibria.zoo.vision.model.inference import masks_of
from equilibria.zoo.vision.model.segmentation import upsample
from equilibria.zoo.vision.task.segmentation import SegmentationTask

_SCENES = 4
"""Images that are shown."""


class _Scene(Picture):
    name: str
    right: float


class _Scenes(Stored):
    pictures: list[_Scene]


def _hang(
    task: SegmentationTask, model: Model, batch: int
) -> tuple[Hanging, dict[str, Any]] | None:
    """Draw some images, spread evenly over the test images; None of a network without masks.

    Beside what every gallery tells there are `classes`, names and colours of those in the masks.
    """
    images = task.images["test"]
    count = min(_SCENES, len(images))
    hanging, shown = Hanging(), set[int]()
    for place in range(count):
        place = (2 * place + 1) * len(images) // (2 * count)
        inputs, targets, *_ = task.batch_of(images, [place])
        output = model(inputs).output
        if isinstance(output, dict) and "masks" not in output:
            return None  # it tells which classes are there, not where
        mask = targets[0]
        told = upsample(masks_of(output).float(), mask.shape).argmax(1)[0]
        known = mask < task.classes
        shown.update(told.unique().tolist(), mask[known].unique().tolist())
        right = int((told == mask)[known].sum()) / max(1, int(known.sum()))
        size = size_to_look_at(*mask.shape)
        hanging.add(
            {"name": images.names[place], "right": right},
            settling(model, inputs, rtol_of(model)),
            size,
            image=image_png(as_it_was(inputs[0], task.statistics), size),
            truth=numbers_png(mask, task.colours, size),
            told=numbers_png(told, task.colours, size),
        )
    classes = [[task.labels[k], hex_of(task.colours[k])] for k in sorted(shown)]
    return hanging, {"count": len(images), "seen": count, "classes": classes}


def _describe(content: Mapping[str, Any]) -> str:
    return (
        f"{content['seen']} of {plural(content['count'], 'test image')}, evenly spaced, whatever "
        "the network predicts for them. Void pixels of the truth are left blank."
    )


def _note(picture: Mapping[str, Any]) -> list[str]:
    return [f"{percent(picture['right'])} of the pixels correct"]


GALLERY = GalleryKind(hang=_hang, shape=_Scenes, describe=_describe, note=_note)
