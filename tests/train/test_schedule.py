"""Learning rates over a run."""

import itertools

import pytest

from equilibria.train.optimiser import Constant, Cosine


def test_the_cosine_falls_from_one_to_its_final_factor():
    schedule = Cosine(final=0.2)
    factors = [schedule.factor(step, 100) for step in range(101)]
    assert factors[0] == 1.0
    assert factors[50] == pytest.approx(0.6)
    assert factors[100] == pytest.approx(0.2)
    assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize("schedule", [Constant(warmup=0.1), Cosine(warmup=0.1)])
def test_the_warmup_rises_in_equal_steps_and_never_from_zero(schedule):
    factors = [schedule.factor(step, 100) for step in range(11)]
    steps = [b - a for a, b in itertools.pairwise(factors)]
    assert factors[0] > 0.0
    assert steps == pytest.approx([steps[0]] * 10)
    assert factors[10] == 1.0


@pytest.mark.parametrize("bad", [{"warmup": -0.1}, {"warmup": 1.1}, {"final": 2.0}])
def test_an_impossible_schedule_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Cosine(**bad)
