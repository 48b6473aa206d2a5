"""A quantity over random draws: its spread, with what is missing or infinite."""

import math

import pytest

from equilibria.stability import Spread, over_draws


def test_spread_over_draws():
    values = [4.0, math.nan, 1.0, 2.0, 3.0, 5.0]
    spread = over_draws(lambda seed: {"a": values[seed], "b": 1.0}, 6)["a"]
    assert (spread.count, spread.missing, spread.median, spread.mean) == (5, 1, 3.0, 3.0)
    assert (spread.low, spread.high) == pytest.approx((1.4, 4.6))
    assert spread.error == pytest.approx(math.sqrt(2.5 / 5))
    infinite = Spread.of([1.0, 2.0, math.inf])
    assert infinite.median == 2.0 and infinite.high == math.inf
    nothing = Spread.of([math.nan])
    assert (nothing.count, nothing.missing) == (0, 1) and math.isnan(nothing.median)
    assert math.isnan(Spread.of([1.0]).error)
    some = over_draws(lambda seed: {"c": 1.0} if seed else {}, 3)["c"]
    assert (some.count, some.missing) == (2, 1)
    with pytest.raises(ValueError, match="draws is 0"):
        over_draws(lambda seed: {}, 0)
