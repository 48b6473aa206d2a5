"""Sections 3.3.5 and 4.2.6: what an output can have seen after some evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import torch

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.mdeq import convergence, reach
from equilibria.experiments.mdeq.networks import DATA, key, training_of
from equilibria.experiments.published import BAI_2022
from equilibria.experiments.training import load
from equilibria.models.vision.mdeq import MDEQ, MDEQConfig
from equilibria.train.step import seed_all

__all__ = ["EXPERIMENT", "cases", "cell", "show"]

ROUNDS: Mapping[int, int] = {1: 8, 2: 8, 3: 5, 4: 3}
"""Evaluations that are measured, by the number of resolutions."""

DRAWS = 2
IMAGES = "cifar10"
STRENGTH = (1, 2, 4, 8, 16)
"""Evaluations after which the strength of a dependence is shown."""

ACROSS = 4
"""Images along a side of the mosaic that the trained network is given."""


def cases(scale: Scale) -> Sequence[Case]:
    """The exact reach of cells without norm, and how strongly the trained network depends."""
    return [
        *(
            Case(
                key=f"reach-{resolutions}",
                description=f"differentiates a cell of {resolutions} resolution(s) after 1 to "
                f"{rounds} evaluations",
                minutes={1: 0.2, 2: 0.4, 3: 1, 4: 2}[resolutions],
                run=_reach(resolutions, rounds),
                settings={
                    "model": asdict(cell(resolutions, rounds)),
                    "rounds": rounds,
                    "draws": DRAWS,
                },
            )
            for resolutions, rounds in ROUNDS.items()
        ),
        training_of(IMAGES, "mdeq", scale, 0),
        Case(
            key="strength",
            description="differentiates the trained MDEQ, with GroupNorm and without",
            minutes=0.5,
            run=_strength,
            settings={"rounds": STRENGTH, "across": ACROSS},
            needs=(key(IMAGES, "mdeq", 0),),
        ),
    ]


def cell(resolutions: int, rounds: int) -> MDEQConfig:
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
    extents = reach.bounds(config, rounds)[-1]
    most = max(extent.most for extent in extents if extent is not None)
    coarsest = 2 ** (resolutions - 1)
    side = -(-(most + 2) // coarsest) * 2 * coarsest  # a middle that all resolutions have
    return replace(config, shape=(1, side, side))


def _reach(resolutions: int, rounds: int) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        config = cell(resolutions, rounds)
        shape = cast("tuple[int, int, int]", config.shape)
        counted = reach.bounds(config, rounds)
        found: list[list[reach.Extent | None]] = [[None] * resolutions for _ in range(rounds)]
        for seed in range(DRAWS):
            seed_all(seed)
            # Far paths are products of many small factors: double precision keeps them from zero.
            model = config.build().double().eval()
            image = torch.randn(1, *shape, dtype=torch.float64, requires_grad=True)
            for row, states in zip(found, reach.course(model, image, rounds), strict=True):
                for level, leaf in enumerate(states):
                    extent = reach.measured(leaf, image)
                    row[level] = row[level] if extent is None else extent.union(row[level])
        return {
            "field": reach.field(config),
            "side": shape[1],
            "counted": [[extent and asdict(extent) for extent in row] for row in counted],
            "measured": [[extent and asdict(extent) for extent in row] for row in found],
        }

    return run


def _strength(place: Place) -> Mapping[str, Any]:
    trained = load(place, key(IMAGES, "mdeq", 0))
    images = trained.data.sample("test", ACROSS**2).inputs
    image = convergence.mosaics(images, ACROSS).double()
    found: dict[str, Any] = {"source": trained.data.source, "side": image.shape[-1]}
    with_norm = cast(MDEQ, trained.model).double().eval()
    config = replace(cast(MDEQConfig, trained.recipe.model), norm="none", initial=None)
    seed_all(0)
    without = cast(MDEQ, config.build()).double().eval()
    for name, model in (("group", with_norm), ("none", without)):
        pixels = image.clone().requires_grad_()
        states = reach.course(model, pixels, max(STRENGTH))
        lines: dict[str, Any] = {}
        for rounds in STRENGTH:
            leaf = states[rounds - 1][0]
            middle = leaf.shape[-1] // 2
            gradient = reach.dependence(leaf, pixels, middle)
            stride = image.shape[-1] // leaf.shape[-1]
            lines[str(rounds)] = reach.profile(gradient, middle * stride)
        found[name] = lines
    return found


def show(done: Results) -> Page:
    """Counted and measured reach side by side; strength against distance."""
    return Page(
        [_reach_table(done), _strength_table(done)],
        [
            _reach_panel(done),
            _strength_panel(done, "group", "trained MDEQ, with its GroupNorm"),
            _strength_panel(done, "none", "the same cell without GroupNorm, new weights"),
        ],
    )


def _reach_table(done: Results) -> Table:
    rows: list[list[Any]] = []
    for resolutions, rounds in ROUNDS.items():
        case = done.get(f"reach-{resolutions}")
        for evals in range(1, rounds + 1):
            if case is None:
                rows.append([resolutions, evals, None, NOT_RUN, *[None] * 4])
                continue
            value = case.value
            counted, seen = value["counted"][evals - 1], value["measured"][evals - 1]
            same = sum(one == other for one, other in zip(counted, seen, strict=True))
            rows.append(
                [
                    resolutions,
                    evals,
                    _most(seen),
                    _most(counted),
                    _bound(resolutions, evals),
                    value["field"],
                    f"{same} of {resolutions}",
                    "yes" if all(map(_within, seen, counted)) else "NO",
                ]
            )
    return Table(
        title="How far an output sees after r plain evaluations, in pixels",
        columns=[
            *("resolutions", "r", "measured", "counted"),
            *("r 2^n", "one evaluation sees of z", "resolutions where both agree"),
            "nothing beyond",
        ],
        rows=rows,
        note="Measured: the farthest pixel, along an axis, whose gradient is not exactly zero, "
        f"over all resolutions of z_r and {DRAWS} draws of weights, in double precision. Counted: "
        "from kernels and strides alone. The cell has no norm here: the statistics of GroupNorm "
        "make every output depend on every pixel from the first evaluation on, though weakly "
        "(below). No output of n resolutions sees beyond r 2^n, the stem counted; from the second "
        "evaluation on some see as far. One evaluation sees more of z, which already stands at all "
        "resolutions, than it adds to what is seen of the image, which enters at the highest.",
    )


def _bound(resolutions: int, evals: int) -> int:
    """Pixels beyond which no output sees, the two 3x3 convolutions of the stem counted."""
    return evals * 2**resolutions


def _most(extents: Sequence[Mapping[str, int] | None]) -> int | None:
    return max((max(e["before"], e["after"]) for e in extents if e is not None), default=None)


def _within(seen: Mapping[str, int] | None, counted: Mapping[str, int] | None) -> bool:
    if seen is None:
        return True
    return counted is not None and all(seen[side] <= counted[side] for side in counted)


def _strength_table(done: Results) -> Table:
    case = done.get("strength")
    source = DATA[IMAGES].words if case is None else case.value["source"]
    rows: list[list[Any]] = []
    distances = (4, 8, 16, 24)
    for name, words in (("group", "with GroupNorm, trained"), ("none", "without, new weights")):
        for rounds in STRENGTH:
            if case is None:
                rows.append([words, rounds, NOT_RUN, *[None] * (len(distances) - 1)])
                continue
            line = case.value[name][str(rounds)]
            rows.append([words, rounds, *(line[d] if d < len(line) else None for d in distances)])
    return Table(
        title="Largest |gradient| at a distance of so many pixels, that at its largest being 1",
        columns=["cell", "evaluations", *(f"{distance} pixels" for distance in distances)],
        rows=rows,
        note=f"Of the middle place of the highest resolution, {source}, {ACROSS} x {ACROSS} test "
        "images side by side. With GroupNorm no distance has an exact zero: the mean and deviation "
        "over all places carry what the kernels cannot.",
    )


def _reach_panel(done: Results) -> Panel:
    series: list[Series] = []
    for colour, (resolutions, rounds) in enumerate(ROUNDS.items()):
        case = done.get(f"reach-{resolutions}")
        if case is None:
            continue
        evals = list(range(1, rounds + 1))
        series += [
            Series(
                label=f"{resolutions} resolution{'s' if resolutions > 1 else ''}",
                x=evals,
                y=[_most(row) for row in case.value["measured"]],
                colour=colour,
                style="marked",
            ),
            Series(
                label="",
                x=evals,
                y=[_bound(resolutions, each) for each in evals],
                colour=colour,
                style="dashed",
            ),
        ]
    return Panel(
        title="reach, measured; dashed: r 2^n at n resolutions",
        x="evaluations r",
        y="pixels",
        series=series,
        whole_x=True,
        zero=True,
    )


def _strength_panel(done: Results, name: str, title: str) -> Panel:
    case = done.get("strength")
    return Panel(
        title=title,
        x="distance, pixels",
        y="|gradient|, the largest being 1",
        series=[
            Series(
                label=f"{rounds} evaluation{'s' if rounds > 1 else ''}",
                x=list(range(len(line))),
                y=line,
            )
            for rounds in STRENGTH
            if case is not None and (line := case.value[name][str(rounds)])
        ],
        log_y=True,
    )


EXPERIMENT = Experiment(
    name="mdeq/receptive",
    paper=BAI_2022,
    subject="Sections 3.3.5, 4.2.6",
    description="What an output depends on after r evaluations: exact limits, and strength.",
    cases=cases,
    show=show,
)
