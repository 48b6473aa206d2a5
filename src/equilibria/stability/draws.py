"""How a measured quantity spreads over random draws of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.stability.probes import StartProbe

__all__ = ["Spread", "over_draws"]


@dataclass(frozen=True)
class Spread:
    """A quantity over random draws.

    Attributes:
        count: draws in which it was measured.
        missing: draws in which it was NaN, as the radius is where no fixed point was found. These
            are mostly the unstable ones: the others, which all that follows is of, are then a
            selection.
        median: and `low` and `high`, a tenth and nine tenths of the way from the smallest to the
            largest.
        mean: and its standard error `error`, NaN of a single draw.
    """

    count: int
    missing: int
    median: float
    low: float
    high: float
    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of some values."""
        known = torch.tensor([v for v in values if not math.isnan(v)], dtype=torch.float64)
        missing = len(values) - len(known)
        if not len(known):
            return cls(0, missing, *[math.nan] * 5)
        low, median, high = (_quantile(known, q) for q in (0.1, 0.5, 0.9))
        error = float(known.std() / len(known) ** 0.5) if len(known) > 1 else math.nan
        return cls(len(known), missing, median, low, high, float(known.mean()), error)


def over_draws(
    probe: Callable[[int], StartProbe | Mapping[str, float]], draws: int = 20
) -> dict[str, Spread]:
    """Measure several random draws of a network and tell how each quantity spreads.

    Args:
        probe: number of a draw, to be its seed -> what was measured.
        draws: their number, at least 1.

    Returns:
        For each quantity that some draw has, by its name (see `StartProbe.numbers`), its spread.

    Raises:
        ValueError: draws is below 1.

    Example:
        >>> def probe(width, seed):
        ...     torch.manual_seed(seed)
        ...     return probe_start(build(width), x)
        >>> for width in (100, 200, 400):
        ...     print(over_draws(lambda seed: probe(width, seed))["length_variance"])
    """
    if draws < 1:
        raise ValueError(f"draws is {draws}: expected 1 or more")
    tables: list[Mapping[str, float]] = []
    for seed in range(draws):
        found = probe(seed)
        tables.append(found.numbers() if isinstance(found, StartProbe) else found)
    names = list(dict.fromkeys(name for table in tables for name in table))
    return {name: Spread.of([table.get(name, math.nan) for table in tables]) for name in names}


def _quantile(values: Tensor, share: float) -> float:
    """Linear between the two values around it, as usual, but infinite next to an infinite one."""
    ordered = values.sort().values
    place = share * (len(ordered) - 1)
    low, high = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
    part = place - math.floor(place)
    return low if part == 0 or low == high else low + part * (high - low)
