"""Inputs of a recipe's training step; data of known size are not read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from equilibria.models import Model, ModelConfig
from equilibria.tasks import Batch, ImageClassification, LanguageModelling, Task
from equilibria.tasks.nodes import NodeTask
from equilibria.tasks.whole_graphs import GraphTask
from equilibria.train.config import ConfigError, as_chosen
from equilibria.train.recipe import Recipe

__all__ = ["Reads", "reads", "reads_of"]

WORDS = {"ptb": 10_000, "wikitext2": 33_278, "wikitext103": 267_735}
"""Vocabulary sizes of the named texts, in words: Merity et al. 2017, Table 1."""

IMAGES: dict[str, tuple[tuple[int, int, int] | None, int]] = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "imagenet": (None, 1000),
}
"""Shapes and numbers of classes of the named images; None where the recipe sets the size."""


@dataclass(frozen=True)
class Reads:
    """The inputs of one step, by shape.

    Attributes:
        config: of the model, with the fields that depend on the data filled in.
        one: inputs and targets of one sample or stream, whose tensors have a first axis of size 1.
        loss: (model, output, targets) -> scalar, the sum over the batch.
        unit: unit of throughput: "tokens", "images" or "samples".
        units: number of these in one sample or stream.
        streams: whether a batch continues where the previous one ended.
        shares: fraction of the tokens in each cluster of an adaptive softmax; () if there is none.
        origin: a short description of the data.
        weight: of the mean loss of auxiliary outputs.
    """

    config: ModelConfig
    one: tuple[Any, Any]
    loss: Callable[[Model, Any, Any], Tensor]
    unit: str
    units: int
    streams: bool
    shares: tuple[float, ...]
    origin: str
    weight: float = 0.0

    def batch(self, rows: int) -> tuple[Any, Any]:
        """Return inputs and targets of `rows` samples, as new uninitialised tensors."""
        return pytree.tree_map_only(
            Tensor, lambda x: torch.empty(rows, *x.shape[1:], dtype=x.dtype), self.one
        )


def reads(recipe: Recipe, data_dir: Path | None = None) -> Reads:
    """Return the inputs of a recipe's step.

    Named texts and images have known sizes and are not read; other data are.

    Args:
        recipe: gives task and model.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.

    Raises:
        ConfigError: the task's batches do not consist of equal samples, as for graphs.
        ValueError: the model does not fit the data.
    """
    task, model = recipe.task, cast(Any, recipe.model)
    if isinstance(task, LanguageModelling) and hasattr(model, "vocabulary"):
        usual = task.unit in (None, "words") and task.min_count == 1 and task.max_size is None
        known = WORDS.get(task.data or "") if usual else None
        if size := model.vocabulary or known:
            origin = f"{size:,} {task.unit or 'words'}" + (f" of {task.data}" if known else "")
            return _text(replace(model, vocabulary=size), task.length, origin)
    if isinstance(task, ImageClassification) and task.data in IMAGES and hasattr(model, "classes"):
        shape, classes = IMAGES[task.data]
        if task.size is not None:
            shape = (3 if shape is None else shape[0], task.size, task.size)
        if shape is not None:
            config = replace(model, shape=model.shape or shape, classes=model.classes or classes)
            return _images(config, task)
    with as_chosen():
        return _of_data(recipe, task.load(data_dir))


def _text(config: Any, length: int, origin: str) -> Reads:
    tokens = torch.zeros(1, length, dtype=torch.int64)
    return Reads(
        config,
        (tokens, tokens),
        lambda model, output, targets: cast(Any, model).losses(output, targets).sum(),
        "tokens",
        length,
        True,
        zipf((0, *config.cutoffs, config.vocabulary)),
        origin,
    )


def _images(config: Any, task: ImageClassification) -> Reads:
    sizes = " x ".join(map(str, config.shape))
    return Reads(
        config,
        (torch.zeros(1, *config.shape), torch.zeros(1, dtype=torch.int64)),
        lambda model, output, targets: functional.cross_entropy(output, targets, reduction="sum"),
        "images",
        1,
        False,
        (),
        f"images {sizes} of {config.classes} classes of {task.data}",
        task.auxiliary,
    )


def _of_data(recipe: Recipe, task: Task) -> Reads:
    if isinstance(task, NodeTask | GraphTask):
        raise _refusal(task)
    return reads_of(recipe.model, task, task.feed(2, recipe.seed).batch(0))


def reads_of(model: ModelConfig, task: Task, batch: Batch) -> Reads:
    """Return the inputs of a task's step, given one of its batches.

    Raises:
        ConfigError: the batch does not consist of equal samples.
        ValueError: the model does not fit the data.
    """
    both, rows = (batch.inputs, batch.targets), batch.samples
    leaves = [x for x in pytree.tree_leaves(both) if isinstance(x, Tensor)]
    if batch.numbers is not None or any(x.ndim == 0 or len(x) != rows for x in leaves):
        raise _refusal(task)
    one = pytree.tree_map_only(Tensor, lambda x: x[:1], both)
    config = cast(Any, task.complete(model))
    shares: tuple[float, ...] = ()
    if cutoffs := getattr(config, "cutoffs", ()):
        shares = _shares(batch.inputs, (0, *cutoffs, config.vocabulary))
    # Units are what the loss is averaged over: images, but the tokens of a text.
    texts, images = task.unit == "tokens", "Classification" in type(task).__name__
    images = images and task.unit == "samples" and all(x.ndim == 4 for x in leaves[:1])
    return Reads(
        config,
        one,
        task.loss,
        "tokens" if texts else "images" if images or task.unit == "pixels" else "samples",
        task.units(one[1]) if texts else 1,
        task.streams,
        shares,
        f"a batch of {task.source or type(task).__name__}",
        task.auxiliary,
    )


def _refusal(task: Task) -> ConfigError:
    return ConfigError(
        f"the batches of {type(task).__name__} do not consist of equal samples, so the cost of a "
        "step does not follow from their number: measure it with `equilibria memory RUN`"
    )


def zipf(edges: Sequence[int]) -> tuple[float, ...]:
    """Return the fraction of tokens in each cluster by Zipf's law for their ranks, p(r) ~ 1 / r.

    `edges` are the first ranks of the clusters and the end of the last; () for a single cluster.
    """
    if len(edges) == 2:
        return ()
    logs = [torch.special.digamma(torch.tensor(x + 1.0, dtype=torch.float64)) for x in edges]
    parts = [float(high - low) for low, high in pairwise(logs)]
    return tuple(part / sum(parts) for part in parts)


def _shares(tokens: Tensor, edges: Sequence[int]) -> tuple[float, ...]:
    inside = [((tokens >= a) & (tokens < b)).double().mean() for a, b in pairwise(edges)]
    return tuple(map(float, inside))
