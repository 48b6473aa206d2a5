"""Sequences that are drawn: what they are, and that they stay so."""

import pytest
import torch

from equilibria.zoo.synthetic.data import drawn
from equilibria.zoo.synthetic.data.drawn import draw_adding, draw_order


@pytest.mark.parametrize("delay", [1, 7, 400])
@pytest.mark.parametrize("delimiters", [1, 11])
def test_what_a_sample_is(delay, delimiters):
    split = drawn.draw_copy_memory(delay, 50, seed=0, delimiters=delimiters)
    inputs, targets = split[:]
    assert inputs.shape == targets.shape == (50, delay + 20)
    assert inputs.dtype == targets.dtype == torch.int64
    symbols = inputs[:, :10]
    assert ((symbols >= 1) & (symbols <= 8)).all()
    assert (inputs[:, 10 : delay + 9] == 0).all()
    marks = inputs == drawn.DELIMITER
    assert marks.sum(1).eq(delimiters).all()
    assert marks[:, delay + 9].all()
    assert (inputs[:, delay + 9 + delimiters :] == 0).all()
    assert (targets[:, : delay + 10] == 0).all()
    assert (targets[:, delay + 10 :] == symbols).all()
    assert max(inputs.max(), targets.max()) < drawn.VOCABULARY


def test_a_function_of_its_arguments():
    one, same, other = (drawn.draw_copy_memory(30, 20, seed=seed) for seed in (1, 1, 2))
    assert (one.inputs == same.inputs).all()
    assert (one.targets == same.targets).all()
    assert (one.inputs != other.inputs).any()
    state = torch.random.get_rng_state()
    drawn.draw_copy_memory(30, 20, seed=3)
    assert (torch.random.get_rng_state() == state).all()


def test_all_symbols_are_as_likely():
    symbols = drawn.draw_copy_memory(10, 4000, seed=0).inputs[:, :10]
    counts = symbols.flatten().bincount(minlength=9)[1:]
    assert (counts / counts.sum() - 1 / 8).abs().max() < 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delay": 0}, "delay is 0"),
        ({"samples": 0}, "samples 0"),
        ({"delimiters": 0}, "delimiters is 0"),
        ({"delimiters": 12}, "expected 1 to 11"),
    ],
    ids=str,
)
def test_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        drawn.draw_copy_memory(**{"delay": 5, "samples": 2, "seed": 0, **arguments})


# --- numbers and orders ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 3, 50, 201])
def test_the_target_is_the_sum_of_two_marked_numbers(length):
    drawn = draw_adding(length, 300, 0)
    values, marks = drawn.inputs.unbind(2)
    half = length // 2
    assert drawn.inputs.shape == (300, length, 2) and drawn.targets.shape == (300, 1)
    assert drawn.inputs.dtype == drawn.targets.dtype == torch.float32
    assert (marks[:, :half].sum(1) == 1).all() and (marks[:, half:].sum(1) == 1).all()
    assert ((values >= 0) & (values < 1)).all()
    assert torch.allclose((values * marks).sum(1, keepdim=True), drawn.targets)


def test_the_mean_of_the_adding_problem_errs_by_a_sixth():
    targets = draw_adding(10, 50_000, 1).targets
    assert abs((targets - 1).square().mean().item() - 1 / 6) < 0.003


def test_every_step_of_each_half_is_marked_at_times():
    marks = draw_adding(7, 2_000, 0).inputs[:, :, 1].mean(0)
    assert ((marks[:3] - 1 / 3).abs() < 0.05).all() and ((marks[3:] - 1 / 4).abs() < 0.05).all()


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize("length", [3, 8, 61])
def test_the_class_is_which_symbol_came_first(length, parity):
    drawn = draw_order(length, 400, 0, symbols=3, parity=parity)
    assert drawn.inputs.shape == (400, length, 5)
    assert (drawn.inputs.sum(2) == 1).all()
    steps = drawn.inputs.argmax(2)
    a, b = ((steps == symbol).int() for symbol in (3, 4))
    assert (a.sum(1) == 1).all() and (b.sum(1) == 1).all()
    at_a, at_b = a.argmax(1), b.argmax(1)
    assert torch.equal((at_b < at_a).long(), drawn.targets)
    assert 150 < int(drawn.targets.sum()) < 250
    if parity:
        assert (at_a % 2 == 0).all() and (at_b % 2 == 0).all()
    elif length > 3:
        assert (at_a % 2 == 1).any() and (at_b % 2 == 1).any()


def test_a_seed_is_a_draw_on_every_machine():
    for draw in (draw_adding, draw_order):
        first, again, other = (draw(20, 5, seed) for seed in (3, 3, 4))
        assert torch.equal(first.inputs, again.inputs)
        assert not torch.equal(first.inputs, other.inputs)
    assert draw_adding(6, 2, 0).targets[:, 0].tolist() == pytest.approx(ADDING, abs=1e-6)
    assert draw_order(8, 8, 0).targets.tolist() == ORDER


# Drawn once with torch 2.13 on x86-64.
ADDING = [0.8036794, 0.8918107]


ORDER = [1, 0, 0, 0, 0, 0, 1, 1]


def test_draws_that_cannot_be_are_refused():
    for wrong in (
        lambda: draw_adding(1, 5, 0),
        lambda: draw_adding(5, 0, 0),
        lambda: draw_order(1, 5, 0),
    ):
        with pytest.raises(ValueError, match="expected at least 2 steps and one sample"):
            wrong()
    with pytest.raises(ValueError, match="at least 3 steps"):
        draw_order(2, 5, 0, parity=True)
    with pytest.raises(ValueError, match="symbols is 0"):
        draw_order(9, 5, 0, symbols=0)
