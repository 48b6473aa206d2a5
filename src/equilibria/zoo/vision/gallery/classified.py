"""Mistakes and right answers of a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from equilibria.run.gallery.kind import (
    GalleryKind,
    Hanging,
    Picture,
    Stored,
    as_it_was,
    rtol_of,
    settling,
)
from equilibria.run.models import Model
from equilibria.run.pictures import image_png, size_to_look_at
from equilibria.run.tasks import Batch
from equilibria.words import percent, plural
from equilibria.zoo.vision.task.classification import ClassificationTask

_BATCH = 50
"""Test images that are looked at together, at most."""

_EACH = 3
"""Mistakes that are shown, and right answers."""

_LOOKED_AT = 1_000
"""Test images that mistakes are looked for in, at most."""

_LISTED = 3
"""Classes whose probability is told."""


class _Image(Picture):
    truth: str
    told: list[tuple[str, float]]


class _Images(Stored):
    wrong: int
    pictures: list[_Image]


def _hang(task: ClassificationTask, model: Model, batch: int) -> tuple[Hanging, dict[str, Any]]:
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
        hanging.add(about, settling(model, image[None], rtol_of(model)), size, image=png)
    return hanging, {"count": len(samples), "seen": seen, "wrong": mistakes}


def _describe(content: Mapping[str, Any]) -> str:
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


def _note(picture: Mapping[str, Any]) -> list[str]:
    (best, chance), *others = picture["told"]
    answer = f"predicted {best}" if _is_mistaken(picture) else "correct"
    notes = [f"{answer}, {percent(chance)}"]
    if others:
        notes.append("then " + ", ".join(f"{name} {percent(value)}" for name, value in others))
    return notes


def _title(picture: Mapping[str, Any]) -> str:
    return picture["truth"]


GALLERY = GalleryKind(
    hang=_hang,
    shape=_Images,
    describe=_describe,
    note=_note,
    title=_title,
    is_wrong=_is_mistaken,
    wide=False,
)
