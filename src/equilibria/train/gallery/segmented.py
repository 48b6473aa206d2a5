"""Test images under the masks of a segmentation network."""

from __future__ import annotations

from typing import Any

from equilibria.models import Model
from equilibria.models.vision.dense_head import upsampled
from equilibria.models.vision.inference import masks_of
from equilibria.tasks.segmentation import SegmentationTask
from equilibria.train.gallery.hanging import Hanging, as_it_was, hex_of, rtol_of
from equilibria.train.pictures import image_png, numbers_png, size_to_look_at
from equilibria.train.settling import settling

__all__ = ["segmented"]

_SCENES = 4
"""Images that are shown."""


def segmented(task: SegmentationTask, model: Model) -> tuple[Hanging, dict[str, Any]] | None:
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
        told = upsampled(masks_of(output).float(), mask.shape).argmax(1)[0]
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
    about = {"kind": "segmentation", "count": len(images), "seen": count, "classes": classes}
    return hanging, about
