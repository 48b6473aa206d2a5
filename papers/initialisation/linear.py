"""Random linear networks: second moment and length variance of each draw, with traces in full.

What differs from the theory is therefore the finite width and the draw.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from equilibria.nn.init import Ensemble
from equilibria.nn.init.normal import disk
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Context, Point
from equilibria.theory import critical_V, length_variance, second_moment
from papers.initialisation.common import weight

FORMULAS = {"second": second_moment, "length": length_variance}
"""tr M^T M and 2 tr (M^T M)^2, M = (I - W)^-1, tr the mean of the diagonal: E[z* . z*] / (x . x),
and the length variance N sigma^2 at input variance 1."""

Pair = tuple[float, float]  # both moments of a draw

SETTLED, REMEMBERED = 1e-4, 0.15
"""Shares of the initial state, and of one recorded state in the next, that untied weights keep."""


def point(
    ensemble: str, weights: str, width: int, deltas: Sequence[float], draws: int, minutes: float
) -> Point:
    """Return the point that draws networks, their weights tied or untied, at several delta."""
    return Point(
        {"ensemble": ensemble, "weights": weights, "width": width},
        [partial(draw, deltas=deltas, draws=draws)],
        settings={"spacing": [count_steps(each) for each in deltas]} if weights == "untied" else {},
        minutes=minutes,
    )


@identified_as("_linear.drawn")
def draw(context: Context, *, deltas: Sequence[float], draws: int) -> Iterator[dict[str, float]]:
    """One row for each distance `delta` = 1 - V / V_c, as `summary` gives it."""
    factors: Any = context.factors
    ensemble, weights, width = factors["ensemble"], factors["weights"], factors["width"]
    if weights == "tied":
        columns = zip(*(draw_tied(ensemble, width, deltas, k) for k in range(draws)), strict=True)
    else:
        columns = (list(draw_untied(ensemble, width, delta, draws, seed=0)) for delta in deltas)
    for delta, pairs in zip(deltas, columns, strict=True):
        yield summary(ensemble, weights, delta, pairs)


def summary(
    ensemble: Ensemble, weights: str, delta: float, pairs: Sequence[Pair]
) -> dict[str, float]:
    """Return the row of one distance: statistics over the draws.

    Of a moment, `..._deviation` is the median of measured / theory - 1, `..._error` the median of
    its absolute value. Of the length variance, `length`, `length_min`, `length_max` are median and
    range, `length_ratio` is the median over the theory.
    """
    row = {"delta": delta}
    for moment, values in zip(FORMULAS, zip(*pairs, strict=True), strict=True):
        limit = theory(moment, ensemble, weights, delta)
        errors = [value / limit - 1 for value in values]
        row[f"{moment}_deviation"] = statistics.median(errors)
        row[f"{moment}_error"] = statistics.median(map(abs, errors))
    lengths = [length for _, length in pairs]
    row |= {"length": statistics.median(lengths), "length_ratio": 1 + row["length_deviation"]}
    return row | {"length_min": min(lengths), "length_max": max(lengths)}


def theory(moment: str, ensemble: Ensemble, weights: str, delta: float) -> float:
    """Return the moment "second" or "length" in the limit of infinite width."""
    V = critical_V(ensemble, tied=weights == "tied") * (1 - delta)
    return FORMULAS[moment](ensemble, V, tied=weights == "tied")


def slope(values: Frame) -> float:
    """Return the slope of log(values) against log(index), by least squares."""
    x, y = map(math.log, values.index), map(math.log, values)
    return statistics.linear_regression(list(x), list(y)).slope


# --- draws ----------------------------------------------------------------------------------------


def draw_tied(ensemble: Ensemble, width: int, deltas: Sequence[float], seed: int) -> list[Pair]:
    """Draw one W and return both moments at each distance, 0 < delta < 1.

    The eigenvalues are enough wherever W is normal; I - W is inverted for a Gaussian W.
    """
    generator = torch.Generator().manual_seed(seed)
    roots = [math.sqrt(critical_V(ensemble) * (1 - delta)) for delta in deltas]
    if ensemble == "normal":
        values = disk(width, generator)
    else:
        w = weight(ensemble, width, generator)
        if ensemble == "gaussian":
            eye = torch.eye(width, dtype=w.dtype)
            return [_traces(torch.linalg.inv(eye - root * w)) for root in roots]
        values = _eigenvalues(ensemble, w)
    inverses = [1 / (1 - root * values).abs().square() for root in roots]
    return [(float(each.mean()), 2 * float(each.square().mean())) for each in inverses]


def draw_untied(
    ensemble: Ensemble, width: int, delta: float, draws: int, seed: int
) -> Iterator[Pair]:
    """Return both moments of `draws` states of M <- I + W M, a new W of V = 1 - delta each step.

    The states are `count_steps` apart: a step keeps V of the deviation of the state before it.
    """
    generator = torch.Generator().manual_seed(seed)
    settled, apart = count_steps(delta)
    m = torch.eye(width, dtype=torch.float64)
    for step in range(settled + apart * (draws - 1) + 1):
        m = weight(ensemble, width, generator, math.sqrt(1 - delta)) @ m
        m.diagonal().add_(1)
        if step >= settled and (step - settled) % apart == 0:
            yield _traces(m)


def count_steps(delta: float) -> tuple[int, int]:
    """Return the steps until an untied network has settled, and those between recorded states."""
    rate = math.log1p(-delta)
    return math.ceil(math.log(SETTLED) / rate), math.ceil(math.log(REMEMBERED) / rate)


def _eigenvalues(ensemble: Ensemble, w: Tensor) -> Tensor:
    """Of a W that is orthogonal or (anti)symmetric, by the solver for symmetric matrices."""
    if ensemble == "orthogonal":  # those of the symmetric part are the cosines
        cosines = torch.linalg.eigvalsh((w + w.mT) / 2)
        return torch.complex(cosines, (1 - cosines.square()).clamp(min=0).sqrt())
    if ensemble == "antisymmetric":
        return 1j * torch.linalg.eigvalsh(w.mT @ w).clamp(min=0).sqrt()
    return torch.linalg.eigvalsh(w)


def _traces(m: Tensor) -> Pair:
    gram = m.mT @ m
    return float(gram.diagonal().mean()), 2 * float(gram.square().sum()) / len(gram)
