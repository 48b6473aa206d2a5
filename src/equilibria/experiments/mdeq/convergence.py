"""Figures 3.3 and 3.7: all resolutions converge together; larger images take more evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.bench.record import Table
from equilibria.data.images.resize import resized
from equilibria.experiments import measure
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.mdeq.networks import DATA, key, training_of
from equilibria.experiments.published import BAI_2022
from equilibria.experiments.training import load
from equilibria.models import EquilibriumModel
from equilibria.solve import AlternatingAnderson, Broyden, Picard, Solver
from equilibria.tasks.classification import ClassificationTask
from equilibria.train.run import Run

__all__ = ["EXPERIMENT", "cases", "mosaics", "show", "traces"]

IMAGES = "cifar10"
NETWORKS = {"mdeq": "MDEQ", "single": "single-stream DEQ"}

SOLVERS: Mapping[str, Solver] = {
    "picard": Picard(),
    "anderson": AlternatingAnderson(),
    "broyden": Broyden(memory=8),
}
"""Plain iteration, and ours: Broyden's method keeps eight steps."""

NAMES = {
    "picard": "plain iteration",
    "anderson": "alternating Anderson (period 3)",
    "broyden": "Broyden, 8 steps",
}

EVALS = 60
SAMPLES = 32
SIZES = (16, 32, 64, 128)
BATCHES = 5
BATCH = 4
KINDS = {"enlarged": "one image, enlarged", "mosaic": "images side by side"}
SHOWN = (5, 10, 20, 40, 60)
TOLERANCES = (1e-1, 1e-2, 1e-3)


def cases(scale: Scale) -> Sequence[Case]:
    """Both trainings, the course of each resolution, and that on larger and larger images."""
    solvers = {name: measure.described(solver) for name, solver in SOLVERS.items()}
    return [
        *(training_of(IMAGES, kind, scale, 0) for kind in NETWORKS),
        *(
            Case(
                key=f"resolutions-{kind}",
                description=f"solves for {SAMPLES} test images with the trained {words}",
                minutes=1,
                run=_resolutions(kind),
                settings={"evals": EVALS, "samples": SAMPLES, "solvers": solvers},
                needs=(key(IMAGES, kind, 0),),
            )
            for kind, words in NETWORKS.items()
        ),
        *(
            Case(
                key=f"{kind}-{size}",
                description=f"solves for {BATCHES} batches of images of {size} x {size} pixels, "
                f"{KINDS[kind]}",
                minutes=round(0.2 + 4 * (size / 128) ** 2, 1),
                run=_enlarged(kind, size),
                settings={
                    "evals": EVALS,
                    "batches": BATCHES,
                    "batch": BATCH,
                    "size": size,
                    "solvers": solvers,
                },
                needs=(key(IMAGES, "mdeq", 0),),
            )
            for kind in KINDS
            for size in SIZES
        ),
    ]


def traces(
    model: EquilibriumModel, images: Tensor, solver: Solver, evals: int
) -> tuple[Tensor, Tensor]:
    """Return the relative residual of each of `evals` evaluations, whole and leaf by leaf.

    The solver is made to take them all: its tolerance is 0 and its patience endless.

    Args:
        model: solved with `solver` in place of its own, in evaluation mode.
        images: (batch, channels, height, width), of any height and width.
        solver: of the fixed point.
        evals: evaluations of the cell.

    Returns:
        (evals, batch) and (evals, leaves, batch); NaN once a sample has left the finite.
    """
    endless = replace(cast(Any, solver), rtol=0.0, atol=0.0, max_evals=evals, patience=None)
    stats = measure.solved(model, images, endless, trace=True).stats
    assert stats.trace is not None and stats.leaf_trace is not None
    return stats.trace, stats.leaf_trace


def mosaics(images: Tensor, across: int) -> Tensor:
    """Return images of `across` by `across` images side by side.

    Args:
        images: (count, channels, height, width), count a multiple of across^2.
        across: images along each side.
    """
    _, channels, height, width = images.shape
    tiles = images.reshape(-1, across, across, channels, height, width)
    whole = tiles.permute(0, 3, 1, 4, 2, 5)
    return whole.reshape(-1, channels, across * height, across * width)


def _resolutions(kind: str) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        trained = load(place, key(IMAGES, kind, 0))
        images = trained.data.sample("test", SAMPLES).inputs
        found: dict[str, Any] = {}
        for name, solver in SOLVERS.items():
            whole, leaves = traces(cast(EquilibriumModel, trained.model), images, solver, EVALS)
            found[name] = {
                "all": measure.quantiles(whole),
                "leaves": [measure.quantiles(leaf) for leaf in leaves.unbind(1)],
            }
        return {"source": trained.data.source, **found}

    return run


def _enlarged(kind: str, size: int) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        trained = load(place, key(IMAGES, "mdeq", 0))
        images = _images(trained, kind, size, place.data_dir)
        found: dict[str, Any] = {}
        for name, solver in SOLVERS.items():
            model = cast(EquilibriumModel, trained.model)
            means = [
                traces(model, batch, solver, EVALS)[0].double().mean(1)
                for batch in images.split(BATCH)
            ]
            spread = torch.stack(means, 1)  # (evals, batches)
            found[name] = {
                "mean": spread.mean(1).tolist(),
                "deviation": spread.std(1).tolist(),
            }
        return {"source": trained.data.source, **found}

    return run


def _images(trained: Run, kind: str, size: int, data_dir: Path | None) -> Tensor:
    """Test images of a size, normalised as in the training: resized from their own; or mosaics."""
    task, count = cast(ClassificationTask, trained.data), BATCHES * BATCH
    if kind == "mosaic":
        across = max(1, size // task.shape[-1])
        return mosaics(task.sample("test", count * across**2).inputs, across)
    own = replace(task.config, size=None, normalise=False).load(data_dir)
    images = resized(own.sample("test", count).inputs, size)
    # The training's mean and deviation: those of the images in their own size are others.
    return images if task.statistics is None else task.statistics.apply(images)


def show(done: Results) -> Page:
    """Each resolution against evaluations, then each size."""
    return Page(
        [_resolution_table(done), _size_table(done)],
        [
            *(_resolution_panel(done, solver) for solver in SOLVERS),
            *(_size_panel(done, solver) for solver in SOLVERS),
        ],
    )


def _levels(found: Mapping[str, Any]) -> list[str]:
    """Words for the leaves of a state: which share of the highest resolution each has."""
    count = len(next(iter(found.values()))["leaves"])
    return ["highest" if not level else f"1/{2**level}" for level in range(count)]


def _resolution_table(done: Results) -> Table:
    rows: list[list[Any]] = []
    source = DATA[IMAGES].words
    for kind, words in NETWORKS.items():
        case = done.get(f"resolutions-{kind}")
        if case is None:
            rows.append([words, None, None, NOT_RUN, *[None] * (len(SHOWN) + 1)])
            continue
        found = {name: case.value[name] for name in SOLVERS}
        source = case.value["source"] or source
        for solver in SOLVERS:
            leaves = zip(_levels(found), found[solver]["leaves"], strict=True)
            for level, line in (*leaves, ("all", found[solver]["all"])):
                median = line["median"]
                after = [_at(median, evals) for evals in SHOWN]
                rows.append([words, NAMES[solver], level, *after, *_first(median)])
    return Table(
        title="Relative residual of each resolution, median over test images",
        columns=[
            *("network", "solver", "resolution"),
            *(f"after {evals}" for evals in SHOWN),
            *(f"evaluations to {tolerance:g}" for tolerance in TOLERANCES),
        ],
        rows=[[*row, *[None] * (3 + len(SHOWN) + len(TOLERANCES) - len(row))] for row in rows],
        note=f"{source}, {SAMPLES} images; ||f(z) - z|| / ||f(z)|| of the leaf alone, at every "
        f"evaluation of {EVALS}. Figure 3.3 shows all scales falling together, the lower ones "
        "sooner, and the highest sooner than a single stream; its values are not printed.",
    )


def _at(line: Sequence[float | None], evals: int) -> float | None:
    return line[evals - 1] if evals <= len(line) else None


def _first(line: Sequence[float | None]) -> list[int | str]:
    """Evaluations after which a line is first below each tolerance."""
    found: list[int | str] = []
    for tolerance in TOLERANCES:
        below = (i for i, value in enumerate(line, 1) if value is not None and value <= tolerance)
        found.append(next(below, f"over {len(line)}"))
    return found


def _size_table(done: Results) -> Table:
    rows: list[list[Any]] = []
    for kind, words in KINDS.items():
        for size in SIZES:
            case = done.get(f"{kind}-{size}")
            for solver in SOLVERS:
                head = [words, size, NAMES[solver]]
                if case is None:
                    rows.append([*head, NOT_RUN, *[None] * (len(SHOWN) + len(TOLERANCES) - 1)])
                    continue
                line = case.value[solver]
                spread = [
                    _spread(_at(line["mean"], evals), _at(line["deviation"], evals))
                    for evals in SHOWN
                ]
                rows.append([*head, *spread, *_first(line["mean"])])
    return Table(
        title="Relative residual on larger images",
        columns=[
            *("images", "pixels a side", "solver"),
            *(f"after {evals}" for evals in SHOWN),
            *(f"evaluations to {tolerance:g}" for tolerance in TOLERANCES),
        ],
        rows=rows,
        note=f"Mean ± deviation over {BATCHES} batches of {BATCH} test images. One network solves "
        "them all, the MDEQ that was trained on the smallest size. Enlarged: CIFAR-10 has 32 x 32 "
        "pixels; above that, images are interpolated and hold no finer detail. Side by side: "
        "images of the training's size fill the larger one. Figure 3.7 has CIFAR-10, "
        "ImageNet and Cityscapes, with a network trained on each, and ||z' - z|| / ||z||; its "
        "values are not printed.",
    )


def _spread(mean: float | None, deviation: float | None) -> str | None:
    if mean is None or deviation is None or not math.isfinite(mean):
        return None
    return f"{mean:.1e} ± {deviation:.0e}"


def _resolution_panel(done: Results, solver: str) -> Panel:
    series: list[Series] = []
    for kind in NETWORKS:
        case = done.get(f"resolutions-{kind}")
        if case is None:
            continue
        found = {name: case.value[name] for name in SOLVERS}
        leaves = zip(_levels(found), found[solver]["leaves"], strict=True)
        for place, (level, line) in enumerate(leaves):
            alone = kind == "single"
            series.append(
                Series(
                    label="single stream" if alone else f"MDEQ, {level}",
                    x=list(range(1, len(line["median"]) + 1)),
                    y=line["median"],
                    low=line["low"],
                    high=line["high"],
                    colour=7 if alone else place,
                    style="dashed" if alone else "line",
                )
            )
    return Panel(
        title=f"each resolution, {NAMES[solver]}",
        x="evaluations",
        y="relative residual",
        series=series,
        log_y=True,
        whole_x=True,
    )


def _size_panel(done: Results, solver: str) -> Panel:
    series: list[Series] = []
    for kind in KINDS:
        for place, size in enumerate(SIZES):
            case = done.get(f"{kind}-{size}")
            if case is None:
                continue
            line = case.value[solver]
            bands = [
                (m - d, m + d)
                for m, d in zip(line["mean"], line["deviation"], strict=True)
                if m is not None and d is not None
            ]
            whole = kind == "enlarged" and len(bands) == len(line["mean"])
            series.append(
                Series(
                    label=f"{size} x {size}" if kind == "enlarged" else "",
                    x=list(range(1, len(line["mean"]) + 1)),
                    y=line["mean"],
                    low=[low for low, _ in bands] if whole else (),
                    high=[high for _, high in bands] if whole else (),
                    colour=place,
                    style="line" if kind == "enlarged" else "dashed",
                )
            )
    return Panel(
        title=f"larger images, {NAMES[solver]}; dashed: side by side",
        x="evaluations",
        y="relative residual",
        series=series,
        log_y=True,
        whole_x=True,
    )


EXPERIMENT = Experiment(
    name="mdeq/convergence",
    paper=BAI_2022,
    subject="Figures 3.3, 3.7",
    description="Residual of each resolution, and of images from 16 to 128 pixels, by solver.",
    cases=cases,
    show=show,
)
