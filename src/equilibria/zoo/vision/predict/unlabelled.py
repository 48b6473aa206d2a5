"""Batches of a user's own images for a network to look at, without labels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from equilibria.run.data.errors import DataError
from equilibria.zoo.vision.predict.seeing import sight
from equilibria.zoo.vision.task.seen import Seen

__all__ = ["unlabelled"]


def unlabelled(
    paths: Sequence[Path], seen: Seen, batches: int, size: int, seed: int
) -> Iterator[Tensor]:
    """Yield batches (size, channels, height, width) of images in random order.

    Images of one size make a batch. Where no more of them are left, the batches that have begun
    follow as they are, the fullest first.

    Args:
        paths: of the images.
        seen: how a run has seen its own.
        batches: how many, at most.
        size: images of each.
        seed: of the order.

    Warns:
        UserWarning: images could not be read, and are left out; the message names the first.
    """
    waiting: dict[tuple[int, ...], list[Tensor]] = {}
    errors: list[str] = []
    given = 0
    for place in torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed)).tolist():
        if given == batches:
            break
        try:
            pixels = sight(paths[place], seen).pixels
        except DataError as error:
            errors.append(str(error))
            continue
        begun = waiting.setdefault(tuple(pixels.shape), [])
        begun.append(pixels)
        if len(begun) == size:
            yield torch.stack(waiting.pop(tuple(pixels.shape)))
            given += 1
    if errors:
        warnings.warn(
            f"{len(errors)} of {len(paths)} images are left out: {errors[0]}", stacklevel=2
        )
    rest = sorted(waiting.values(), key=len, reverse=True)
    yield from (torch.stack(begun) for begun in rest[: batches - given])
