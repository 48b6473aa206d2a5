"""Which of the starts that were measured to choose, by radius, width and evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from equilibria.nn.init import Ensemble
from equilibria.stability.ensembles.results import Start, Sweep

__all__ = ["AIM", "HELD", "MIDDLE", "Decided", "aimed", "choose", "width"]

AIM = (0.3, 0.9)
"""Spectral radius at z* to start from, the largest of all samples and draws. Below, the network is
hardly deeper than one layer; above, solves are long and a little training takes it over 1."""

MIDDLE = sum(AIM) / 2

ALIKE = 1.15
"""Ratio of two ranges' widths up to which they are alike: an edge is known to about 10 %."""

NEAR = 0.05
"""Difference of two radii up to which they are alike: as much as other draws differ by."""

TIED = 1.1
"""Ratio of evaluations up to which they are alike: other draws of the weights differ as much."""

HELD = 0.95
"""Share of its scale that a weight must act as, not to be called held back by a bound."""

ORDER: tuple[Ensemble, ...] = ("orthogonal", "gaussian", "goe", "antisymmetric", "normal")
"""What is taken where nothing measured tells them apart: orthogonal weights first, whose singular
values do not vary from draw to draw."""


Decided = Literal["alone", "radius", "width", "evals", "worst", "order"]


def choose(found: Sweep) -> tuple[Start, Decided]:
    """Choose the start; see `recommend`. And what told its ensemble from the others.

    Where nothing is workable, it is the start that comes nearest.
    """
    runs: dict[Ensemble, list[Start]] = {
        name: run for name in found.ensembles if (run := _run(found.of(name)))
    }
    if not runs:
        nearest = min(found.starts, key=lambda start: (-start.worst, -start.converged, start.scale))
        return nearest, "alone"
    widths = {name: width(found.of(name), run) for name, run in runs.items()}
    picks = {name: _pick(run) for name, run in runs.items()}
    least = min(_missed(start) for start in picks.values())
    within: list[Ensemble] = [n for n in runs if _missed(picks[n]) <= least + NEAR]
    wide: list[Ensemble] = [
        name for name in within if not any(_wider(widths[other], widths[name]) for other in within)
    ]
    at = _common([runs[name] for name in wide])
    evals: dict[Ensemble, float] = {name: _evals(runs[name], at) for name in wide}
    quick: list[Ensemble] = [name for name in wide if evals[name] <= TIED * min(evals.values())]
    worst = max(picks[name].worst for name in quick)
    sure: list[Ensemble] = [name for name in quick if picks[name].worst == worst]
    best = min(sure, key=ORDER.index)
    rounds: dict[Decided, list[Ensemble]] = {
        "alone": list(runs),
        "radius": within,
        "width": wide,
        "evals": quick,
        "worst": sure,
    }
    ends: list[Decided] = [by for by, left in rounds.items() if len(left) == 1]
    return picks[best], ends[0] if ends else "order"


def aimed(start: Start) -> bool:
    """Whether the largest radius of a start is between those of `AIM`."""
    return AIM[0] <= start.largest <= AIM[1]


def _missed(start: Start) -> float:
    """How far its largest radius is outside `AIM`; infinite where there is none."""
    if not math.isfinite(start.largest):
        return math.inf
    return max(AIM[0] - start.largest, start.largest - AIM[1], 0.0)


def _runs(starts: Sequence[Start]) -> Iterator[list[Start]]:
    """Consecutive scales that are workable."""
    run: list[Start] = []
    for start in starts:
        if start.workable:
            run.append(start)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _run(starts: Sequence[Start]) -> list[Start]:
    """The longest of them by what is deep in it; none where nothing is workable."""
    return max(_runs(starts), key=lambda run: (width(starts, run)[0], len(run)), default=[])


def _held(run: Sequence[Start]) -> bool:
    """Whether a bound on the weights lets the largest scales act as no more than others."""
    first, last = run[0], run[-1]
    return last.gain * first.scale < HELD * first.gain * last.scale


def width(starts: Sequence[Start], run: Sequence[Start]) -> tuple[float, bool]:
    """The ratio of the gains between which the radius is in `AIM`; whether it is at least that.

    It is so where one end is that of the scales that were tried, and no bound on the weights makes
    it the end of all. 0 where the radius is nowhere in `AIM`. Beyond the end of `AIM` larger
    weights are workable, but none to start from.

    Args:
        starts: of an ensemble, the smallest scale first.
        run: those of them, one after the other, that are workable.
    """
    deep = next((i for i, start in enumerate(run) if start.largest >= AIM[0]), None)
    if deep is None or min(start.gain for start in run) <= 0:
        return 0.0, False
    low = run[deep].gain if deep == 0 else _passing(run[deep - 1], run[deep], AIM[0])
    unknown = run[deep] is starts[0]
    for before, start in pairwise(run[max(deep - 1, 0) :]):
        if start.largest > AIM[1]:
            high = before.gain if before.largest > AIM[1] else _passing(before, start, AIM[1])
            return (max(high / low, 1.0), unknown)
    if len(run) == 1 and run[0].largest > AIM[1]:
        return 0.0, False
    high = max(start.gain for start in run[deep:])
    return max(high / low, 1.0), unknown or (run[-1] is starts[-1] and not _held(run))


def _passing(before: Start, after: Start, level: float) -> float:
    """The gain between two at which the radius, as a power of the gain, is `level`."""
    if not 0 < before.largest < after.largest:
        return after.gain
    share = math.log(level / before.largest) / math.log(after.largest / before.largest)
    return before.gain * (after.gain / before.gain) ** share


def _wider(one: tuple[float, bool], other: tuple[float, bool]) -> bool:
    """Whether a range is surely the wider one; one whose end is not known may be as wide.

    A single scale has a width of 1, which is no more than none.
    """
    return not other[1] and one[0] > ALIKE * max(other[0], 1.0)


def _pick(run: Sequence[Start]) -> Start:
    """The start to choose: nearest to the middle of the aim; of equals the smallest scale."""

    def order(start: Start) -> tuple[bool, float, float]:
        distance = abs(start.largest - MIDDLE) if math.isfinite(start.largest) else math.inf
        return not aimed(start), round(distance, 2) if distance < 1e6 else math.inf, start.scale

    return min(run, key=order)


def _common(runs: Sequence[Sequence[Start]]) -> float:
    """The radius nearest to the middle of the aim that all have, or come nearest to."""
    radii = [[s.largest for s in run if math.isfinite(s.largest)] for run in runs]
    least = max((min(row) for row in radii if row), default=MIDDLE)
    most = min((max(row) for row in radii if row), default=MIDDLE)
    return min(max(MIDDLE, least), most)


def _evals(run: Sequence[Start], radius: float) -> float:
    """Evaluations at a radius, interpolated between the starts beside it, or of the nearest.

    An iteration that gains log10(1/radius) digits a step takes as many as 1/log(1/radius) times a
    constant, which is what they are taken to be linear in.
    """

    def steps(value: float) -> float:
        return -1 / math.log(value)

    for before, after in pairwise(run):
        if 0 < before.largest <= radius <= after.largest and before.largest < after.largest:
            if after.largest < 1:
                share = steps(radius) - steps(before.largest)
                share /= steps(after.largest) - steps(before.largest)
            else:
                share = (radius - before.largest) / (after.largest - before.largest)
            return before.evals + share * (after.evals - before.evals)
    known = [start for start in run if math.isfinite(start.largest)] or run
    return min(known, key=lambda start: abs(start.largest - radius)).evals
