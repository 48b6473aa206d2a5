"""Copy memory: ten symbols, a silence, and the ten symbols again."""

import pytest
import torch

from equilibria.zoo.synthetic.data import drawn


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
