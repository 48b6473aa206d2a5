"""What was measured and what is to be done, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from equilibria.nn.init import Ensemble
from equilibria.stability.advice import number, percent
from equilibria.stability.ensembles.choice import (
    AIM,
    HELD,
    MIDDLE,
    TIED,
    Choice,
    Range,
    aimed,
)
from equilibria.stability.ensembles.results import ENOUGH, Start, Sweep

__all__ = ["reasons_of", "remarks_of"]

_STABLE = 0.98
"""Radius below which theory, scaled to what was measured, speaks for a fixed point."""


def reasons_of(found: Sweep, choice: Choice) -> tuple[str, ...]:
    """Return the recommendation itself, and why."""
    best = choice.best
    if not best.workable:
        return _nothing(found, best)
    solved = "every sample" if best.worst == 1 else f"{percent(best.converged)} of the samples"
    reasons = [
        f"Start from {best.ensemble} weights at scale {best.scale:g}.",
        f"There {found.solver} brings {solved} to the fixed point, in {best.evals:.1f} evaluations "
        f"on average; plain iteration brings {_plain(best)}.",
        f"The spectral radius at z* is {_radius(best)}.",
        *_compared(choice, found),
        *_predicted(found, best),
    ]
    return tuple(reasons)


def remarks_of(found: Sweep, choice: Choice) -> tuple[str, ...]:
    """Return what else there is to know."""
    return tuple(
        sentence
        for part in (
            _as_it_is(found),
            _held_back(found),
            _never(found),
            _replaced(found),
            _uneven(found),
            _short(found, choice.best),
            _between(found, choice.best),
            found.notes,
        )
        for sentence in part
    )


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


def _plain(best: Start) -> str:
    if best.plain_converged == 0:
        return "none"
    share = "all" if best.plain_converged == 1 else f"{percent(best.plain_converged)} of them"
    return f"{share}, in {best.plain_evals:.1f}"


def _radius(best: Start) -> str:
    low, high = AIM
    said = f"{number(best.radius)} on average and {number(best.largest)} at most, which is "
    if aimed(best):
        return f"{said}between {low} and {high}: deep enough to matter and well below 1"
    if best.largest < low:
        return f"{said}below {low}: the network is hardly deeper than one layer"
    return f"{said}above {high}: solves are long and training may take it over 1"


def _compared(choice: Choice, found: Sweep) -> Iterator[str]:
    """Why this ensemble: the ranges of all, and what decided."""
    ranges = {each.ensemble: each for each in choice.ranges}
    if len(found.ensembles) == 1:
        yield f"Workable scales: {choice.ranges[0]}."
        return
    mine = ranges[choice.best.ensemble]
    others = [name for name in choice.contenders if name != mine.ensemble]
    if choice.decided == "width":
        rest = max(ranges[name].factor for name in choice.within if name != mine.ensemble)
        yield (
            f"It has the widest range of weights whose radius is between {AIM[0]} and {AIM[1]}: "
            f"{_factor(mine)}; the next has {rest:.2g}."
        )
    elif choice.decided == "radius":
        yield f"No other ensemble has a workable start as near to {AIM[0]} to {AIM[1]}."
    elif others and choice.evals is not None:
        counts = ", ".join(f"{name} {choice.evals[name]:.1f}" for name in choice.contenders)
        told = {
            "evals": "it takes the fewest.",
            "worst": f"those within {_tied()} are alike, and with its worst draw the most samples "
            "converge.",
            "order": f"those within {_tied()} are alike, and of these "
            + (
                "orthogonal comes first, whose singular values do not vary from draw to draw."
                if mine.ensemble == "orthogonal"
                else f"{mine.ensemble} is taken by convention, not for what was measured."
            ),
        }[choice.decided]
        yield (
            f"The range of scales is as wide for {' and '.join(others)}. Evaluations at a radius "
            f"of {number(choice.at)}: {counts}; {told}"
        )
    words = [f"{each.ensemble} {each}" for each in choice.ranges]
    words += [f"{name} none" for name in found.ensembles if name not in ranges]
    yield f"Workable scales: {'; '.join(words)}."


def _tied() -> str:
    return percent(TIED - 1)


def _factor(mine: Range) -> str:
    return f"a factor of {'at least ' * mine.open}{mine.factor:.2g} from end to end"


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
            f"{number(best.radius)} on average."
        )


def _limit(scale: float) -> str:
    if math.isnan(scale):
        return "not known"
    return f"{scale:.3g}" if math.isfinite(scale) else "never"


def _as_it_is(found: Sweep) -> Iterator[str]:
    own = found.own
    if own is None:
        yield f"As it is, without a change: cannot be reached ({found.refused})."
        return
    said = f"{percent(own.converged)} of the samples converge"
    if own.converged >= ENOUGH:
        said += f", in {own.evals:.1f} evaluations"
        if math.isfinite(own.radius):
            said += f", with a radius of {number(own.radius)} on average"
            said += f" and {number(own.largest)} at most at gain {number(own.gain)}"
    good = own.converged >= ENOUGH and AIM[0] <= own.largest <= AIM[1]
    yield f"As it is, without a change: {said}" + (". That is a good start too." if good else ".")


def _held_back(found: Sweep) -> Iterator[str]:
    """A bound on the weight's norm: beyond some scale larger ones are no larger."""
    words = []
    for name in found.ensembles:
        first, last = found.of(name)[0], found.of(name)[-1]
        if last.gain / last.scale < HELD * first.gain / first.scale:
            words.append(f"{name} {last.gain:.3g}")
    if words:
        yield (
            "The norm of the weight is bounded: at the largest scale tried the weights act as "
            f"those of scale {', '.join(words)}, and predictions are for what they act as."
        )


def _never(found: Sweep) -> Iterator[str]:
    """A radius that stays small at every scale, all of which converge: else it is of survivors."""
    for name in found.ensembles:
        starts = found.of(name)
        if not all(start.workable and math.isfinite(start.largest) for start in starts):
            continue
        top = max(start.largest for start in starts)
        if top < AIM[1]:
            kinds = " and ".join(found.normalisations)
            why = f": {kinds} in the cell takes the scale of the weights back" if kinds else ""
            yield (
                f"With {name} weights the radius stays below {_up(top)} at every scale tried{why}."
            )


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
    """Samples that may run out of evaluations where a fixed point is there to be found."""
    for start, after in pairwise(found.of(best.ensemble)):
        if start.scale < best.scale or not start.workable or after.workable:
            continue
        # What was measured there is of the samples that converged, and would be too small; theory
        # is corrected by what it misses at the last scale that is workable.
        if start.forecast and after.forecast and start.forecast.radius > 0:
            radius = after.forecast.radius * start.largest / start.forecast.radius
            if radius < _STABLE:
                yield _ran_out(found, best.ensemble, after.scale, radius)
        return


def _ran_out(found: Sweep, ensemble: Ensemble, scale: float, radius: float) -> str:
    return (
        f"From scale {scale:g} on {ensemble} weights may run out of evaluations "
        f"({found.max_evals}) rather than of fixed points: theory, scaled to what was measured "
        f"before, has a radius of {number(radius)} there. A larger --solver.max_evals would tell."
    )


def _between(found: Sweep, best: Start) -> Iterator[str]:
    """The way to a radius that lies between two scales."""
    if not best.workable or aimed(best) or math.isnan(best.largest):
        return
    starts = [start for start in found.of(best.ensemble) if start.workable]
    if any(s.largest < AIM[0] for s in starts) and any(s.largest > AIM[1] for s in starts):
        yield (
            f"A radius between {AIM[0]} and {AIM[1]} lies between two scales that were tried: "
            f"--initialisation.ensemble {best.ensemble} --initialisation.radius {MIDDLE:.1f} "
            "finds the scale."
        )
