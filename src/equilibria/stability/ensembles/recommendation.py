"""Which ensemble and which scale to start from, and what to be wary of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any, Literal

from equilibria.nn.init import Ensemble
from equilibria.stability.ensembles.results import Start, Sweep
from equilibria.stability.examination import plain
from equilibria.words import percent

# --- choice ---------------------------------------------------------------------------------------

# Which of the starts that were measured to choose, by radius, width and evaluations.


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
    least = min(_miss(start) for start in picks.values())
    within: list[Ensemble] = [n for n in runs if _miss(picks[n]) <= least + NEAR]
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


def _miss(start: Start) -> float:
    """How far its largest radius is outside `AIM`; infinite where there is none."""
    if not math.isfinite(start.largest):
        return math.inf
    return max(AIM[0] - start.largest, start.largest - AIM[1], 0.0)


def _run(starts: Sequence[Start]) -> list[Start]:
    """Consecutive scales that are workable, the longest by what is deep in them; none for none."""
    runs = [list(run) for workable, run in groupby(starts, lambda s: s.workable) if workable]
    return max(runs, key=lambda run: (width(starts, run)[0], len(run)), default=[])


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
    low = run[deep].gain if deep == 0 else _find_gain(run[deep - 1], run[deep], AIM[0])
    unknown = run[deep] is starts[0]
    for before, start in pairwise(run[max(deep - 1, 0) :]):
        if start.largest > AIM[1]:
            high = before.gain if before.largest > AIM[1] else _find_gain(before, start, AIM[1])
            return (max(high / low, 1.0), unknown)
    if len(run) == 1 and run[0].largest > AIM[1]:
        return 0.0, False
    high = max(start.gain for start in run[deep:])
    return max(high / low, 1.0), unknown or (run[-1] is starts[-1] and not _held(run))


def _find_gain(before: Start, after: Start, level: float) -> float:
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


# --- recommendation -------------------------------------------------------------------------------


_DECIDED: dict[Decided, str] = {
    "alone": "no other ensemble tried is workable",
    "radius": f"the radius nearest to {AIM[0]} to {AIM[1]}",
    "width": "the widest range of scales",
    "evals": "the fewest evaluations",
    "worst": "the most samples converged with the worst draw",
    "order": "by convention: measurements do not tell the ensembles apart",
}


@dataclass(frozen=True)
class Recommendation:
    """What to start from.

    Attributes:
        ensemble: the family of the weights.
        scale: sqrt(V).
        workable: whether enough samples converge there; if not, it is the best that was tried.
        decided: what told the ensemble from the others: alone, radius, width, evals, worst or
            order.
        warnings: sentences on numbers that are missing or not to be relied on.
    """

    ensemble: Ensemble
    scale: float
    workable: bool
    decided: Decided
    warnings: tuple[str, ...]

    @property
    def options(self) -> str:
        """The options of `equilibria train` that choose it."""
        return f"--initialization.ensemble {self.ensemble} --initialization.scale {self.scale:g}"

    def __str__(self) -> str:
        if not self.workable:
            return "Recommended: none, as no start that was tried is workable"
        return f"Recommended: {self.ensemble} at scale {self.scale:g} ({_DECIDED[self.decided]})"

    def json(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, text and numbers."""
        return {**plain(asdict(self)), "options": self.options}


def recommend(found: Sweep) -> Recommendation:
    """Choose the ensemble and the scale to start from.

    A start is workable where at least 95 % of the samples converge under the layer's own solver
    with each draw of the weights; nothing is made of a radius elsewhere, where it is that of the
    survivors. A start is judged by its largest radius, over all samples and draws. Of an ensemble
    the start is taken whose radius is nearest to .6, the middle of .3 to .9.

    The ensemble is one with such a start inside .3 to .9, or within .05 of the nearest to it. Of
    these it is the one with the widest range between the gains at which the radius is .3 and .9, or
    ceases to be workable; of those within 15 % of the widest, or whose range ends only because no
    other scale was tried, the one with the fewest evaluations at the same radius, .6 or the largest
    that all reach; of those within 10 % of the fewest, the one with whose worst draw the most
    samples converge; of equals the first of orthogonal, gaussian, goe, antisymmetric, normal.

    Args:
        found: what a sweep has measured.
    """
    best, decided = choose(found)
    warnings = tuple(_warnings(found, best))
    return Recommendation(best.ensemble, best.scale, best.workable, decided, warnings)


def _warnings(found: Sweep, best: Start) -> Iterator[str]:
    """What the table cannot say of its numbers."""
    if not best.workable:
        yield _suggest_remedies(found)
    elif not aimed(best):
        yield _describe_radius(found, best)
    if found.own is None:
        yield f"The model as it is cannot be reached: {found.refused}."
    for name, reason in found.impossible.items():
        yield f"{name} was left out: {reason}."
    for name, count in found.replaced.items():
        if count:
            yield (
                f"The rows of {name} have Gaussian weights in {count} of {found.maps} maps, whose "
                "shapes have no such member."
            )
    if not found.theory:
        yield f"There is no prediction: {found.reason}."
    yield from found.notes


def _suggest_remedies(found: Sweep) -> str:
    """What to do where no start is workable."""
    said = (
        f"Try smaller --scales, a --solver.max_evals above {found.max_evals} or a --solver.rtol "
        f"above {found.rtol:g}"
    )
    if found.normalizations:
        kinds = " and ".join(found.normalizations)
        said += (
            f". {kinds} in the cell undoes the scale of the weights: if no scale helps, begin with "
            "a shallow network (pretrain: {name: ShallowStart})"
        )
    return f"{said}."


def _describe_radius(found: Sweep, best: Start) -> str:
    """A recommended start whose radius is not one to start from."""
    if not math.isfinite(best.largest):
        return "The spectral radius of the recommended start could not be measured."
    low, high = AIM
    means = (
        f"below {low}: the network is hardly deeper than one layer"
        if best.largest < low
        else f"above {high}: solves are long and training may take it over 1"
    )
    said = f"The largest radius of the recommended start, {best.largest:.2g}, is {means}."
    radii = [start.largest for start in found.of(best.ensemble) if start.workable]
    if any(radius < low for radius in radii) and any(radius > high for radius in radii):
        said += (
            f" --initialization.ensemble {best.ensemble} --initialization.radius {MIDDLE:.1f} "
            "finds a scale between those that were tried."
        )
    return said


# --- table ----------------------------------------------------------------------------------------

# A sweep as a table.


def tabulate(
    found: Sweep, advice: Recommendation | None = None
) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of a table: the model as it is, and each start.

    A radius is left out where too few samples converge: it would be that of the survivors.

    Args:
        found: what was measured.
        advice: the start that it recommends is marked with a star.
    """
    columns: list[tuple[str, Callable[[Start], str]]] = []
    if any(abs(start.gain - start.scale) > (1 - HELD) * start.scale for start in found.starts):
        columns += [("acts as", lambda start: _number(start.gain))]
    columns += [
        ("converged", _format_converged),
        ("evals", lambda start: f"{start.evals:.1f}"),
        ("plain", lambda start: percent(start.plain_converged)),
        ("evals", lambda start: f"{start.plain_evals:.1f}"),
        ("radius", lambda start: _number(start.radius) if start.workable else "–"),
        ("max", lambda start: _number(start.largest) if start.workable else "–"),
    ]
    if found.theory:
        columns += [("theory", lambda start: _number(start.predicted))]
    rows: list[list[str]] = []
    if found.own is not None:
        own = Start(ensemble=found.ensembles[0], scale=found.own.gain, trials=(found.own,))
        rows.append(["as it is", "–", *(text(own) for _, text in columns)])
    best = (advice.ensemble, advice.scale) if advice and advice.workable else None
    for start in found.starts:
        scale = f"{'* ' * (best == (start.ensemble, start.scale))}{start.scale:g}"
        rows.append([start.ensemble, scale, *(text(start) for _, text in columns)])
    return ["ensemble", "scale", *(head for head, _ in columns)], rows


def _format_converged(start: Start) -> str:
    """The share of all draws, and that of the worst where it is another."""
    said = percent(start.converged)
    return said if start.worst == start.converged else f"{said} (≥ {percent(start.worst)})"


def _number(value: float) -> str:
    """Three digits; a dash for none."""
    return "–" if math.isnan(value) else f"{value:.3g}"
