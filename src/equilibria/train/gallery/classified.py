"""Mistakes and right answers of a classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from equilibria.models import Model
from equilibria.tasks import Batch
from equilibria.tasks.classification import ClassificationTask
from equilibria.train.gallery.hanging import Hanging, as_it_was, rtol_of
from equilibria.train.pictures import image_png, size_to_look_at
from equilibria.train.settling import settling

__all__ = ["classified"]

_EACH = 3
"""Mistakes that are shown, and right answers."""

_LOOKED_AT = 1_000
"""Test images that mistakes are looked for in, at most."""

_LISTED = 3
"""Classes whose probability is told."""


def classified(
    task: ClassificationTask, model: Model, batch: int
) -> tuple[Hanging, dict[str, Any]]:
    samples = task.samples["test"]
    wrong: list[tuple[Tensor, Tensor, int]] = []
    right: list[tuple[Tensor, Tensor, int]] = []
    seen = mistakes = 0
    for places in task.some("test", _LOOKED_AT).split(batch):
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
    about = {"kind": "classification", "count": len(samples), "seen": seen, "wrong": mistakes}
    return hanging, about
