"""Optimisers, which differ in what the papers' recipes depend on, and learning rates over a run."""

import itertools

import pytest
import torch
from torch import nn

from equilibria.run.optimizer import SGD, Adam, AdamW, Constant, Cosine, OneCycle, Poly, StableDecay


def moved(optimizer, gradient, steps=1):
    """How far a weight of 1 has gone, at a constant gradient."""
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight)
    torch_one = optimizer.build(model)
    for _ in range(steps):
        model.weight.grad = torch.full((1, 1), gradient)
        torch_one.step()
    return 1.0 - float(model.weight.detach())


def test_plain_descent_has_no_momentum():
    assert moved(SGD(lr=20.0, momentum=0.0), 1e-3, steps=3) == pytest.approx(3 * 20.0 * 1e-3)
    assert moved(SGD(lr=20.0, momentum=0.5), 1e-3, steps=3) > 1.3 * 3 * 20.0 * 1e-3


def test_the_decay_of_adam_is_in_its_gradient_and_that_of_adamw_is_not():
    """Adam divides by the gradient's size, decay included: without another, it is a full step."""
    assert moved(Adam(lr=0.01, weight_decay=0.1), 0.0) == pytest.approx(0.01, rel=1e-3)
    assert moved(AdamW(lr=0.01, weight_decay=0.1), 0.0) == pytest.approx(0.01 * 0.1, rel=1e-3)
    assert moved(Adam(lr=0.01), 5.0) == pytest.approx(moved(AdamW(lr=0.01), 5.0))


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_impossible_moments_are_refused(kind):
    with pytest.raises(ValueError, match="betas must lie in"):
        kind(betas=(0.9, 1.0))


# --- schedules -----------------------------------------------------------------------------------


def test_the_cosine_falls_from_one_to_its_final_factor():
    schedule = Cosine(final=0.2)
    factors = [schedule.factor(step, 100) for step in range(101)]
    assert factors[0] == 1.0
    assert factors[50] == pytest.approx(0.6)
    assert factors[100] == pytest.approx(0.2)
    assert factors == sorted(factors, reverse=True)


def test_a_power_of_what_is_left():
    schedule = Poly(power=0.9)
    assert [schedule.factor(step, 100) for step in (0, 50, 100)] == pytest.approx([1, 0.5**0.9, 0])
    with pytest.raises(ValueError, match="power"):
        Poly(power=0.0)


def test_it_stays_at_one_and_falls_in_a_straight_line_at_the_end():
    schedule = StableDecay(warmup=0.2, decay=0.25, final=0.1)
    factors = [schedule.factor(step, 100) for step in range(101)]
    assert factors[20:81] == pytest.approx([1.0] * 61)
    assert factors[90] == pytest.approx(0.55) and factors[100] == pytest.approx(0.1)
    steps = [b - a for a, b in itertools.pairwise(factors[80:])]
    assert steps == pytest.approx([-0.045] * 20)
    assert StableDecay(decay=1.0, final=0.0).factor(50, 100) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "bad", [{"decay": 0.0}, {"decay": 1.5}, {"final": -0.1}, {"final": 2.0}, {"warmup": 2.0}]
)
def test_an_impossible_decay_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        StableDecay(**bad)


@pytest.mark.parametrize("kind", [Constant, Cosine, Poly, StableDecay])
def test_the_warmup_rises_in_equal_steps_and_never_from_zero(kind):
    schedule = kind(warmup=0.1)
    factors = [schedule.factor(step, 100) for step in range(11)]
    steps = [b - a for a, b in itertools.pairwise(factors)]
    assert factors[0] > 0.0
    assert steps == pytest.approx([steps[0]] * 10)
    assert factors[10] == 1.0


@pytest.mark.parametrize("bad", [{"warmup": -0.1}, {"warmup": 1.1}, {"final": 2.0}])
def test_an_impossible_schedule_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Cosine(**bad)


@pytest.mark.parametrize(("warmup", "steps"), [(0.05, 200), (0.3, 7), (0.25, 10)])
def test_one_cycle_is_that_of_torch(warmup, steps):
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2.0, steps, pct_start=warmup, anneal_strategy="linear", cycle_momentum=False
    )
    schedule = OneCycle(warmup=warmup)
    for step in range(steps):
        expected = optimizer.param_groups[0]["lr"] / 2.0
        assert schedule.factor(step, steps) == pytest.approx(expected, rel=1e-9), step
        if step + 1 < steps:
            optimizer.step()
            theirs.step()


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_one_cycle_of_few_steps_begins_at_its_highest(steps):
    factors = [OneCycle().factor(step, steps) for step in range(steps)]
    assert factors[0] == 1.0 and factors == sorted(factors, reverse=True)
    with pytest.raises(ValueError, match="start must be a factor"):
        OneCycle(start=2.0)
