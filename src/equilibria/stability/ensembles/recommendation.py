"""Which ensemble and which scale to start from, and why, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from equilibria.nn.init import Ensemble
from equilibria.stability.advice import number, percent
from equilibria.stability.ensembles.results import ENOUGH, Start, Sweep
from equilibria.stability.examination import plain

__all__ = ["AIM", "Range", "Recommendation", "recommend"]

AIM = (0.3, 0.9)
"""Spectral radius at z* to start from. Below, the network is hardly deeper than one layer; above,
solves are long and a little training takes it over 1."""

_MIDDLE = sum(AIM) / 2
_HELD = 0.98
_ALIKE = 1.15


@dataclass(frozen=True)
class Range:
    """The scales of an ensemble that are workable, one after the other.

    Attributes:
        ensemble: whose.
        low: the smallest of them.
        high: the largest.
        factor: between the least and the largest at which the spectral radius is .3 or more, as f
            uses the weights; 0 where it nowhere is.
        open: no larger scale was tried.
    """

    ensemble: Ensemble
    low: float
    high: float
    factor: float
    open: bool

    def __str__(self) -> str:
        if self.low == self.high:
            return f"only {self.low:g}"
        return f"{self.low:g} to {self.high:g}" + ", the largest tried" * self.open


@dataclass(frozen=True)
class Recommendation:
    """What to start from.

    Attributes:
        ensemble: the family of the weights.
        scale: sqrt(V).
        workable: whether enough samples converge there; if not, it is the best that was tried.
        ranges: of the ensembles that have workable scales.
        reasons: sentences, the recommendation itself first.
        remarks: sentences on what else to know.
    """

    ensemble: Ensemble
    scale: float
    workable: bool
    ranges: tuple[Range, ...]
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def options(self) -> str:
        """The options of `equilibria train` that choose it."""
        return f"--initialisation.ensemble {self.ensemble} --initialisation.scale {self.scale:g}"

    def json(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, text and numbers."""
        return {**plain(asdict(self)), "options": self.options}


def recommend(found: Sweep) -> Recommendation:
    """Say which ensemble and which scale to start from.

    A start is workable where at least 95 % of the samples converge under the layer's own solver
    with each draw of the weights. The ensemble is the one with the widest range of workable scales
    whose spectral radius is .3 or more; of those within 15 % of the widest, the one with the fewest
    evaluations. The scale is the one in that range whose radius is nearest to .6, the middle of .3
    to .9.

    Args:
        found: what a sweep has measured.
    """
    runs: dict[Ensemble, list[Start]] = {}
    for name in found.ensembles:
        if run := _run(found.of(name)):
            runs[name] = run
    ranges = tuple(_range(found, name, run) for name, run in runs.items())
    if not runs:
        best = min(found.starts, key=lambda start: (-start.worst, -start.converged, start.scale))
        return Recommendation(
            best.ensemble, best.scale, False, (), _nothing(found, best), _remarks(found, best)
        )
    picks = {name: _pick(run) for name, run in runs.items()}
    factors = {each.ensemble: each.factor for each in ranges}

    widest = max(factors.values())

    def order(name: Ensemble) -> tuple[bool, bool, float]:
        return not _aimed(picks[name]), not _as_wide(factors[name], widest), picks[name].evals

    best = picks[min(runs, key=order)]
    return Recommendation(
        best.ensemble,
        best.scale,
        True,
        ranges,
        _reasons(found, best, ranges),
        _remarks(found, best),
    )


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
    return max(_runs(starts), key=lambda run: (_factor(run), len(run)), default=[])


def _factor(run: Sequence[Start]) -> float:
    """How far apart the gains are at which a network is more than one layer deep; 0 if at none.

    The least of them is between two scales as a rule, where the radius, as a power of the gain,
    passes the lower end of the aim.
    """
    deep = [start for start in run if start.radius >= AIM[0]]
    if not deep or min(start.gain for start in run) <= 0:
        return 0.0
    first, least = deep[0], deep[0].gain
    if before := [start for start in run if start.scale < first.scale and start.radius > 0]:
        start = before[-1]
        rise = math.log(first.radius / start.radius)
        share = math.log(first.radius / AIM[0]) / rise
        least *= (start.gain / first.gain) ** share
    return max(start.gain for start in deep) / least


def _as_wide(factor: float, widest: float) -> bool:
    """Whether a range is about as wide as the widest: an edge is known to about 10 %."""
    return _ALIKE * factor >= widest


def _range(found: Sweep, name: Ensemble, run: Sequence[Start]) -> Range:
    last = found.of(name)[-1].scale
    return Range(name, run[0].scale, run[-1].scale, _factor(run), run[-1].scale == last)


def _aimed(start: Start) -> bool:
    return AIM[0] <= start.radius <= AIM[1]


def _pick(run: Sequence[Start]) -> Start:
    """The start to choose: nearest to the middle of the aim; of equals the smallest scale."""

    def order(start: Start) -> tuple[bool, float, float]:
        distance = abs(start.radius - _MIDDLE) if math.isfinite(start.radius) else math.inf
        return not _aimed(start), round(distance, 2) if distance < 1e6 else math.inf, start.scale

    return min(run, key=order)


def _nothing(found: Sweep, best: Start) -> tuple[str, ...]:
    """Words where no start is workable."""
    if best.converged == 0:
        most = "no sample reaches its fixed point"
    else:
        most = (
            f"at best {percent(best.converged)} of the samples reach their fixed point, with "
            f"{best.ensemble} weights at scale {best.scale:g}"
        )
    reasons = [
        "No start that was tried is workable.",
        f"With {found.solver} within {found.max_evals} evaluations {most}.",
    ]
    if found.normalisations:
        kinds = " and ".join(found.normalisations)
        reasons.append(
            f"{kinds} in the cell takes the scale of the weights back, so that no scale may help: "
            "train the cell unrolled first (pretrain: {name: ShallowStart}), which is how such "
            "networks begin."
        )
    reasons.append(
        f"Else try smaller scales (--scales), more evaluations (--solver.max_evals) than "
        f"{found.max_evals}, or a tolerance (--solver.rtol) above {found.rtol:g}."
    )
    return tuple(reasons)


def _reasons(found: Sweep, best: Start, ranges: Sequence[Range]) -> tuple[str, ...]:
    solved = "every sample" if best.worst == 1 else f"{percent(best.converged)} of the samples"
    reasons = [
        f"Start from {best.ensemble} weights at scale {best.scale:g}.",
        f"There {found.solver} brings {solved} to the fixed point, in {best.evals:.1f} evaluations "
        f"on average; plain iteration brings {_plain(best)}.",
        f"The spectral radius at z* is {_radius(best)}.",
        *_compared(best, ranges, found.ensembles),
        *_predicted(found, best),
    ]
    return tuple(reasons)


def _plain(best: Start) -> str:
    if best.plain_converged == 0:
        return "none"
    share = "all" if best.plain_converged == 1 else f"{percent(best.plain_converged)} of them"
    return f"{share}, in {best.plain_evals:.1f}"


def _radius(best: Start) -> str:
    low, high = AIM
    said = f"{number(best.radius)} on average, {number(best.largest)} at most"
    if _aimed(best):
        return f"{said}: between {low} and {high}, deep enough to matter and well below 1"
    if best.radius < low:
        return f"{said}: below {low}, the network is hardly deeper than one layer"
    return f"{said}: above {high}, solves are long and training may take it over 1"


def _compared(best: Start, ranges: Sequence[Range], ensembles: Sequence[Ensemble]) -> Iterator[str]:
    """Why this ensemble: the ranges of all."""
    if len(ensembles) == 1:
        yield f"Workable scales: {ranges[0]}."
        return
    factors = {each.ensemble: each.factor for each in ranges}
    mine, widest = factors[best.ensemble], max(factors.values())
    wide = [name for name, factor in factors.items() if _as_wide(factor, widest)]
    what = f"range of workable scales with a radius of at least {AIM[0]}"
    if mine and wide == [best.ensemble]:
        yield f"It has the widest {what}, a factor of {mine:.2g}."
    elif mine and best.ensemble in wide:
        others = " and ".join(name for name in wide if name != best.ensemble)
        yield (
            f"Its {what}, a factor of {mine:.2g}, is about as wide as that of {others}, and it "
            "takes the fewest evaluations."
        )
    words = [f"{each.ensemble} {each}" for each in ranges]
    words += [f"{name} none" for name in ensembles if name not in factors]
    yield f"Workable scales: {'; '.join(words)}."


def _predicted(found: Sweep, best: Start) -> Iterator[str]:
    """What theory says of it."""
    if found.critical is None:
        yield f"There is no prediction beside it: {found.reason}."
        return
    limits = {name: _limit(value) for name, value in found.critical.items()}
    words = "; ".join(f"{name} {limit}" for name, limit in limits.items())
    yield (
        f"For a wide layer {found.theory} theory has the radius reach 1, where plain iteration no "
        f"longer converges, at the scale sqrt(V*): {words}."
    )
    if best.forecast is not None:
        yield (
            f"Here it predicts a radius of {number(best.forecast.radius)}; measured "
            f"{number(best.radius)}."
        )


def _limit(scale: float) -> str:
    if math.isnan(scale):
        return "not known"
    return f"{scale:.3g}" if math.isfinite(scale) else "never"


def _remarks(found: Sweep, best: Start) -> tuple[str, ...]:
    return tuple(
        sentence
        for part in (
            _as_it_is(found),
            _held_back(found),
            _never(found),
            _replaced(found),
            _uneven(found),
            _short(found, best),
            _between(found, best),
        )
        for sentence in part
    )


def _as_it_is(found: Sweep) -> Iterator[str]:
    own = found.own
    if math.isnan(own.radius):
        said = f"{percent(own.converged)} of the samples converge"
    else:
        said = (
            f"{percent(own.converged)} of the samples converge, in {own.evals:.1f} evaluations, "
            f"with a radius of {number(own.radius)} at gain {number(own.gain)}"
        )
    good = own.converged >= ENOUGH and AIM[0] <= own.radius <= AIM[1]
    yield f"As it is, without a change: {said}" + (". That is a good start too." if good else ".")


def _held_back(found: Sweep) -> Iterator[str]:
    """A bound on the weight's norm: beyond some scale larger ones are no larger."""
    words = []
    for name in found.ensembles:
        starts = found.of(name)
        at_first, at_last = starts[0].gain / starts[0].scale, starts[-1].gain / starts[-1].scale
        if at_last < _HELD * at_first:
            words.append(f"{name} {number(starts[-1].gain / at_first)}")
    if words:
        yield (
            "The norm of the weight is bounded: at the largest scale tried the weights act as "
            f"those of scale {', '.join(words)}, and predictions are for what they act as."
        )


def _never(found: Sweep) -> Iterator[str]:
    """A radius that stays small at every scale that converges."""
    for name in found.ensembles:
        starts = [start for start in found.of(name) if math.isfinite(start.radius)]
        if not starts or len(starts) < len(found.of(name)):
            continue
        top = max(start.radius for start in starts)
        if top < AIM[1]:
            kinds = " and ".join(found.normalisations)
            why = f": {kinds} in the cell takes the scale of the weights back" if kinds else ""
            yield f"With {name} weights the radius stays below {_up(top)} at every scale{why}."


def _up(value: float) -> str:
    return f"{math.ceil(100 * value + 1e-9) / 100:g}"


def _replaced(found: Sweep) -> Iterator[str]:
    for reason in found.impossible.values():
        yield f"Left out: {reason}."
    for name, count in found.replaced.items():
        if count:
            are = "is" if count == 1 else "are"
            yield (
                f"Of the {found.maps} maps {count} {are} Gaussian in place of {name}: there is no "
                "such member of their shape."
            )


def _uneven(found: Sweep) -> Iterator[str]:
    """Starts that chance decides."""
    for name in found.ensembles:
        words = [
            f"{start.scale:g} ({percent(start.worst)} to "
            f"{percent(max(trial.converged for trial in start.trials))})"
            for start in found.of(name)
            if not start.workable and max(t.converged for t in start.trials) >= ENOUGH
        ]
        if words:
            yield f"Chance decides whether {name} weights converge at scale {', '.join(words)}."


def _short(found: Sweep, best: Start) -> Iterator[str]:
    """Samples that run out of evaluations where a fixed point is there to be found."""
    starts = found.of(best.ensemble)
    for start, after in pairwise(starts):
        if start.scale < best.scale or not start.workable or after.workable:
            continue
        # What was measured is of those samples that converged, and would be too small.
        radius = after.forecast.radius if after.forecast else math.nan
        if radius < _HELD:
            yield (
                f"From scale {after.scale:g} on {best.ensemble} weights run out of evaluations "
                f"({found.max_evals}), not of fixed points: theory has a radius of "
                f"{number(radius)} there, and with a larger --solver.max_evals larger scales "
                "are workable too."
            )
        return


def _between(found: Sweep, best: Start) -> Iterator[str]:
    """The way to a radius that lies between two scales."""
    if _aimed(best) or math.isnan(best.radius):
        return
    starts = [start for start in found.of(best.ensemble) if math.isfinite(start.radius)]
    if any(s.radius < AIM[0] for s in starts) and any(s.radius > AIM[1] for s in starts):
        yield (
            f"A radius between {AIM[0]} and {AIM[1]} lies between two scales that were tried: "
            f"--initialisation.ensemble {best.ensemble} --initialisation.radius {_MIDDLE:.1f} "
            "finds the scale."
        )
