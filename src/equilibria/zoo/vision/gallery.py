"""What a report shows of images: mistakes and right answers, or test images under masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from equilibria.run.gallery.kind import (
    GalleryKind,
    Hanging,
    PictureRecord,
    Stored,
    as_it_was,
    hex_of,
    measure_settling,
    rtol_of,
)
from equilibria.run.models import Model
from equilibria.run.pictures import image_png, numbers_png, size_to_look_at
from equilibria.run.tasks import Batch
from equilibria.words import percent, plural
from equilibria.zoo.vision.model.segmentation import masks_of, upsample
from equilibria.zoo.vision.task.classification import ClassificationTask
from equilibria.zoo.vision.task.segmentation import SegmentationTask

_BATCH = 50
"""Test images that are looked at together, at most."""

_EACH = 3
"""Mistakes that are shown, and right answers."""

_LOOKED_AT = 1_000
"""Test images that mistakes are looked for in, at most."""

_LISTED = 3
"""Classes whose probability is told."""


class _Image(PictureRecord):
    truth: str
    told: list[tuple[str, float]]


class _Mistakes(Stored):
    wrong: int
    pictures: list[_Image]


def _hang_classes(
    task: ClassificationTask, model: Model, batch: int
) -> tuple[Hanging, dict[str, Any]]:
    """Draw some mistakes and some right answers, the first of the test images in an order that is
    random and always the same."""
    samples = task.samples["test"]
    wrong: list[tuple[Tensor, Tensor, int]] = []
    right: list[tuple[Tensor, Tensor, int]] = []
    seen = mistakes = 0
    for places in task.some("test", _LOOKED_AT).split(min(_BATCH, batch)):
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
    hanging = Hanging()
    for image, chance, target in (*some, *right[: 2 * _EACH - len(some)]):
        best = chance.topk(min(_LISTED, len(chance)))
        told = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        about = {
            "truth": task.labels[target],
            "told": [[task.labels[place], value] for place, value in told],
        }
        size = size_to_look_at(*image.shape[1:])
        png = image_png(as_it_was(image, task.statistics), size)
        hanging.add(about, measure_settling(model, image[None], rtol_of(model)), size, image=png)
    return hanging, {"count": len(samples), "seen": seen, "wrong": mistakes}


def _describe_classes(content: Mapping[str, Any]) -> str:
    seen, wrong, pictures = content["seen"], content["wrong"], content["pictures"]
    shown = sum(_is_mistaken(picture) for picture in pictures)
    images = plural(seen, "test image")
    of = f"Of all {images}," if seen == content["count"] else f"Of {images} taken at random,"
    if not shown:
        return f"{of} none is misclassified. Shown are the first {len(pictures)}."
    return (
        f"{of} {wrong} {'is' if wrong == 1 else 'are'} misclassified. Shown are the first {shown} "
        f"of these and the first {len(pictures) - shown} of the others: the selection does not "
        "reflect how frequent mistakes are."
    )


def _is_mistaken(picture: Mapping[str, Any]) -> bool:
    return picture["told"][0][0] != picture["truth"]


def _note_class(picture: Mapping[str, Any]) -> list[str]:
    (best, chance), *others = picture["told"]
    answer = f"predicted {best}" if _is_mistaken(picture) else "correct"
    notes = [f"{answer}, {percent(chance)}"]
    if others:
        notes.append("then " + ", ".join(f"{name} {percent(value)}" for name, value in others))
    return notes


CLASSIFICATION = GalleryKind(
    hang=_hang_classes,
    shape=_Mistakes,
    describe=_describe_classes,
    note=_note_class,
    title=lambda picture: picture["truth"],
    is_wrong=_is_mistaken,
    wide=False,
)


# --- segmentation ---------------------------------------------------------------------------------

_SCENES = 4
"""Images that are shown."""


class _Scene(PictureRecord):
    name: str
    right: float


class _Scenes(Stored):
    pictures: list[_Scene]


def _hang_masks(
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
            measure_settling(model, inputs, rtol_of(model)),
            size,
            image=image_png(as_it_was(inputs[0], task.statistics), size),
            truth=numbers_png(mask, task.colors, size),
            told=numbers_png(told, task.colors, size),
        )
    classes = [[task.labels[k], hex_of(task.colors[k])] for k in sorted(shown)]
    return hanging, {"count": len(images), "seen": count, "classes": classes}


def _describe_masks(content: Mapping[str, Any]) -> str:
    return (
        f"{content['seen']} of {plural(content['count'], 'test image')}, evenly spaced, whatever "
        "the network predicts for them. Void pixels of the truth are left blank."
    )


def _note_mask(picture: Mapping[str, Any]) -> list[str]:
    return [f"{percent(picture['right'])} of the pixels correct"]


SEGMENTATION = GalleryKind(
    hang=_hang_masks, shape=_Scenes, describe=_describe_masks, note=_note_mask
)
