"""What an output depends on after r evaluations: exact limits, and strength."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from equilibria.run.models import Model
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Chart, Lines, Pivot, of
from equilibria.run.trainer import seed_all
from equilibria.zoo.vision.model.mdeq import MDEQ, MDEQConfig, MultiscaleCell
from papers.mdeq.common import training_of
from papers.mdeq.residuals import mosaics

Extents = np.ndarray[Any, Any]
"""A pair of numbers, the last axis of an array: by how many pixels, along either axis, what is seen
precedes a place at most, and by how many it follows; -inf where nothing is seen. The place p of a
resolution of stride s lies at the pixel p s."""


@identified_as("_reach.reach")
def reach(context: Context, *, config: MDEQConfig, evals: int, draws: int) -> Iterable[Any]:
    """How far an output sees, in pixels, after each number of evaluations.

    `measured` over draws of the weights, `counted` from kernels and strides, the `bound` r 2^n, and
    `field`, what one evaluation sees of z; `agreeing`, the resolutions where measured and counted
    are the same on both sides, and `within`, whether nothing lies beyond what is counted.
    """
    counted = bounds(config, evals)
    found = np.full_like(counted, -np.inf)
    for seed in range(draws):
        seed_all(seed)
        # Far paths are products of many small factors: double precision keeps them from zero.
        model = config.build().double().eval()
        image = torch.randn(1, *cast(Sequence[int], config.shape), dtype=torch.float64)
        image.requires_grad_()
        states = _states(model, image, evals)
        found = np.maximum(found, [[_measure(leaf, image) for leaf in z] for z in states])
    resolutions = len(config.channels)
    for number, (mine, theirs) in enumerate(zip(found, counted, strict=True), start=1):
        yield {
            "evals": number,
            "measured": int(mine.max()),
            "counted": int(theirs.max()),
            "bound": number * 2**resolutions,  # the stem's two 3x3 convolutions included
            "field": field(config),
            "agreeing": f"{(mine == theirs).all(-1).sum()} of {resolutions}",
            "within": "yes" if (mine <= theirs).all() else "no",
        }


@identified_as("_reach.strength")
def strength(context: Context, *, evals: Sequence[int], across: int) -> Iterable[dict[str, Any]]:
    """Largest |gradient| at each `distance` from the middle of a mosaic, relative to its maximum,
    of the highest resolution; by `norm`: "group", as trained, or "none", with new weights."""
    run = context.run.load()
    yield {"source": run.data.source}
    image = mosaics(run.data.sample("test", across**2).inputs, across).double().requires_grad_()
    config = replace(cast(MDEQConfig, run.recipe.model), norm="none", initial=None)
    seed_all(0)
    for norm, model in {"group": run.model, "none": config.build()}.items():
        states = dict(enumerate(_states(model.double().eval(), image, max(evals)), start=1))
        for number in evals:
            leaf = states[number][0]
            middle = leaf.shape[-1] // 2
            away = (torch.arange(image.shape[-1]) - middle * _stride(leaf, image)).abs()
            distances = torch.maximum(away[:, None], away[None])  # along the farther axis
            gradient = _dependence(leaf, image, middle)
            for distance in range(int(distances.max()) + 1):
                share = float(gradient[distances == distance].max() / gradient.max())
                yield {"norm": norm, "evals": number, "distance": distance, "gradient": share}


def bounds(config: MDEQConfig, evals: int) -> Extents:
    """Return how far z_r can see in an image, r = 1, ..., `evals`: (evals, resolutions, 2).

    Counted from strides and kernels alone. GroupNorm is left out: its statistics see everything.
    """
    seen, stride = np.zeros(2), 1
    for layer in range(max(2, config.halvings)):  # the stem's 3x3 convolutions
        seen += stride
        stride *= 2 if layer < config.halvings else 1
    states = [np.full((len(config.channels), 2), -np.inf)]
    for _ in range(evals):
        states.append(_evaluate(states[-1], seen, stride))
    return np.stack(states[1:])


def field(config: MDEQConfig) -> int:
    """Return how far, in pixels, any place of f(z) sees z: 2, 5, 11, 23 at 1 to 4 resolutions."""
    here = np.zeros((len(config.channels), 2))
    return int(_evaluate(here, np.zeros(2), 2**config.halvings).max())


def _evaluate(state: Extents, seen: Extents, stride: int) -> Extents:
    """One evaluation: `seen` is the extent of the injection, `stride` that of its places."""
    strides = stride * 2 ** np.arange(len(state))
    blocks = state + 2 * strides[:, None]  # two 3x3 convolutions
    blocks[0] = np.maximum(blocks[0], seen)  # the input is added behind them
    fused = blocks.copy()
    for j, i in np.ndindex(len(state), len(state)):
        # Down, a 3x3 convolution of stride 2 a level: s + 2 s + 4 s + ... on both sides. Up, the
        # nearest place that does not follow: up to a place less one before.
        jump = abs(int(strides[i] - strides[j]))
        wider = np.array([jump, jump if i < j else 0])
        fused[j] = np.maximum(fused[j], blocks[i] + wider)
    return fused


def _states(model: Model, image: Tensor, evals: int) -> Iterator[Sequence[Tensor]]:
    """The states after 1, ..., `evals` evaluations, connected to the image (1, c, h, w)."""
    model = cast(MDEQ, model)
    (features,) = model.inject(image)
    cell = cast(MultiscaleCell, model.deq.cell)
    z = cell.start(features)
    for _ in range(evals):
        z = cell(z, features)
        yield z


def _dependence(leaf: Tensor, image: Tensor, place: int) -> Tensor:
    """|d y / d pixel|, (height, width), the largest over the colours.

    y is a random combination of the channels of a resolution (1, c, h, w) at a row and column.
    """
    y = (leaf[0, :, place, place] * torch.randn(leaf.shape[1], dtype=leaf.dtype)).sum()
    gradient = None
    if y.requires_grad:
        (gradient,) = torch.autograd.grad(y, image, retain_graph=True, allow_unused=True)
    return torch.zeros_like(image[0, 0]) if gradient is None else gradient[0].abs().amax(0)


def _measure(leaf: Tensor, image: Tensor) -> Extents:
    """The extent of the pixels whose gradient is not exactly zero.

    Of two places: one where all coarser resolutions have one too, and the place before it, whose
    nearest coarser ones are the farthest away.
    """
    middle, found = leaf.shape[-1] // 2, np.full(2, -np.inf)
    for place in (middle, middle - 1):
        spots = _dependence(leaf, image, place).nonzero() - place * _stride(leaf, image)
        if len(spots):
            found = np.maximum(found, (max(0, -int(spots.min())), max(0, int(spots.max()))))
    return found


def _stride(leaf: Tensor, image: Tensor) -> int:
    return image.shape[-1] // leaf.shape[-1]


# --- The study ------------------------------------------------------------------------------------


EVALS = {1: 8, 2: 8, 3: 5, 4: 3}
"""Evaluations that are measured, by the number of resolutions."""
DRAWS = 2
STRENGTH = (1, 2, 4, 8, 16)
"""Evaluations after which the strength of a dependence is shown."""
ACROSS = 4
"""Images along a side of the mosaic that the trained network is given."""
NORMS = {"group": "with GroupNorm, trained", "none": "without, new weights"}


def cell(resolutions: int, evals: int) -> MDEQConfig:
    """Return a network whose cell has no norm, for images that its reach does not leave."""
    config = MDEQConfig(
        classes=2,
        channels=(8,) * resolutions,
        head_channels=(1,) * resolutions,
        final=1,
        expansion=1,
        norm="none",
        weight_norm=False,
        initial=None,
    )
    coarsest = 2 ** (resolutions - 1)
    most = int(bounds(config, evals)[-1].max())
    side = -(-(most + 2) // coarsest) * 2 * coarsest  # a middle that all resolutions have
    return replace(config, shape=(1, side, side))


lines = partial(Lines, x="evals", by=["resolutions"], where={"what": "reach"})
strengths = partial(Lines, x="distance", y="gradient", by=["evals"])

STUDY = Study(
    item="Sections 3.3.5, 4.2.6",
    title="What an output depends on",
    points=lambda scale: [
        *(
            Point(
                {"what": "reach", "resolutions": n},
                [partial(reach, config=cell(n, evals), evals=evals, draws=DRAWS)],
                minutes={1: 0.2, 2: 0.4, 3: 1, 4: 2}[n],
            )
            for n, evals in EVALS.items()
        ),
        Point(
            {"what": "strength"},
            [partial(strength, evals=STRENGTH, across=ACROSS)],
            {"mdeq": training_of("cifar10", "mdeq", scale)},
            minutes=0.5,
        ),
    ],
    views=[
        Pivot(
            title="How far an output sees after r plain evaluations, in pixels",
            index={"resolutions": "resolutions", "evals": "r"},
            each="evals",
            where={"what": "reach"},
            values={
                "measured": "measured",
                "counted": "counted",
                "r 2^n": "bound",
                "one evaluation sees of z": "field",
                "resolutions where both agree": "agreeing",
                "nothing beyond": "within",
            },
            note="Measured: the farthest pixel, along an axis, whose gradient is not exactly zero, "
            f"over all resolutions of z_r and {DRAWS} draws of weights, in double precision. "
            "Counted: from kernels and strides alone. The cell has no norm here: the statistics of "
            "GroupNorm make every output depend on every pixel from the first evaluation on, "
            "though weakly (below). r 2^n includes the stem. One evaluation sees more of z, which "
            "stands at all resolutions, than of the image, which enters at the highest.",
        ),
        Pivot(
            title="Largest |gradient| at a distance, relative to its maximum",
            index={"norm": "cell", "evals": "evaluations"},
            each="distance",
            where={"what": "strength"},
            words={"norm": NORMS},
            values={f"{at} pixels": of("gradient", distance=at) for at in (4, 8, 16, 24)},
            note=f"Of the middle place of the highest resolution, CIFAR-10, {ACROSS} x {ACROSS} "
            "test images side by side.",
        ),
        Chart(
            title="reach, measured; dashed: r 2^n at n resolutions",
            x="evaluations r",
            y="pixels",
            marks=[
                lines(y="measured", style="marked", label="resolutions: {:g}".format),
                lines(y="bound", style="dashed", label=""),
            ],
            whole_x=True,
            zero=True,
        ),
        *(
            strengths(where={"norm": norm}, label="evaluations: {:g}".format).chart(
                title, "distance, pixels", "|gradient|, the largest being 1", log_y=True
            )
            for norm, title in (
                ("group", "trained MDEQ, with its GroupNorm"),
                ("none", "the same cell without GroupNorm, new weights"),
            )
        ),
    ],
)
