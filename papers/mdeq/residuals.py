"""Measures: residuals of a trained network, evaluation by evaluation, on images of any size."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.nn import using
from equilibria.run.models import EquilibriumModel, Model
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.study import Context
from equilibria.run.studies.training import Trained
from equilibria.solve import Solver
from equilibria.zoo.io.decode import resize
from equilibria.zoo.vision.task.classification import ClassificationTask

LEVELS = ("highest", "1/2", "1/4", "1/8")
"""Resolutions of a state."""


@identified_as("_residuals.resolutions")
def resolutions(
    context: Context, *, solvers: Mapping[str, Solver], count: int
) -> Iterable[dict[str, Any]]:
    """Relative residual of each resolution, and of `all`, after each evaluation.

    `residual`, `low` and `high` are the median and the 10 and 90 % quantiles over test images.
    """
    run = context.run.load()
    yield {"source": run.data.source}
    images = run.data.sample("test", count).inputs
    shares = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
    for name, solver in solvers.items():
        whole, leaves = _traces(run.model, images, solver)
        found = dict(zip(LEVELS, leaves.unbind(1), strict=False)) | {"all": whole}
        for level, trace in found.items():
            lines = torch.quantile(trace.double(), shares, dim=-1)
            yield from _rows(lines, solver=name, resolution=level)


@identified_as("_residuals.larger")
def larger(
    context: Context, *, solvers: Mapping[str, Solver], batches: int, batch: int
) -> Iterable[dict[str, Any]]:
    """Mean relative residual after each evaluation, on images of the factors `images` and `side`.

    `low` and `high` are the mean less and plus the deviation over the batches.
    """
    run, side = context.run.load(), int(context.factors["side"])
    yield {"source": run.data.source}
    make = {"enlarged": _enlarge, "mosaic": _mosaics}[str(context.factors["images"])]
    parts = make(context.run, side, batches * batch).split(batch)
    for name, solver in solvers.items():
        means = torch.stack([_traces(run.model, part, solver)[0].mean(1) for part in parts])
        deviation, mean = torch.std_mean(means.double(), 0)
        lines = torch.stack([mean, mean - deviation, mean + deviation])
        yield from _rows(lines, solver=name)


def _traces(model: Model, images: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
    """Residuals of the state (evals, batch) and of its leaves (evals, leaves, batch)."""
    model = cast(EquilibriumModel, model)
    with torch.no_grad(), using(model, solver=solver):
        stats: Any = model.deq(*model.inject(images), trace=True).stats
    return stats.trace, stats.leaf_trace


def _rows(lines: Tensor, **names: str) -> Iterable[dict[str, Any]]:
    """Rows of three lines, (3, evals)."""
    for evals, (residual, low, high) in enumerate(lines.T.tolist(), start=1):
        yield {**names, "evals": evals, "residual": residual, "low": low, "high": high}


def _enlarge(run: Trained, side: int, count: int) -> Tensor:
    """Test images, resized from their own size, with the mean and deviation of the training's."""
    task = cast(ClassificationTask, run.task)
    own = replace(task.config, size=None, normalize=False).load(run.data_dir)
    images = resize(own.sample("test", count).inputs, side)
    return images if task.statistics is None else task.statistics.apply(images)


def _mosaics(run: Trained, side: int, count: int) -> Tensor:
    """Test images as the training has them, as many side by side as fit."""
    across = max(1, side // cast(ClassificationTask, run.task).shape[-1])
    return mosaics(run.task.sample("test", count * across**2).inputs, across)


def mosaics(images: Tensor, across: int) -> Tensor:
    """Return images of `across` by `across` of the images (count, channels, height, width)."""
    _, channels, height, width = images.shape
    tiles = images.reshape(-1, across, across, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    return tiles.reshape(-1, channels, across * height, across * width)
