"""Samples in batches, and data sets by their names."""

import pytest
import torch

from equilibria.run import data
from equilibria.run.data import Dataset, Split
from equilibria.run.registry import find


def split(count):
    return Split(torch.arange(count).unsqueeze(1), torch.arange(count))


def test_batches_go_through_all_samples_once():
    batches = list(split(10).batches(4))
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    assert torch.cat([targets for _, targets in batches]).tolist() == list(range(10))
    assert all((inputs[:, 0] == targets).all() for inputs, targets in batches)


def test_a_seed_is_an_order():
    first, again, other = (
        torch.cat([targets for _, targets in split(50).batches(7, seed=seed)]).tolist()
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert sorted(first) == sorted(other) == list(range(50))


def test_a_batch_needs_a_sample():
    with pytest.raises(ValueError, match="a batch of 0 samples"):
        next(split(3).batches(0))


def test_a_target_a_sample():
    with pytest.raises(ValueError, match="3 samples and 2 targets"):
        Split(torch.zeros(3, 1), torch.zeros(2))
    with pytest.raises(ValueError, match="at least one sample"):
        Split(torch.zeros(0, 1), torch.zeros(0))


def test_an_unknown_name_gets_the_nearest():
    assert data.available() == sorted(find("data"))
    assert {"digits", "mnist"} <= {*data.available(Dataset)} < {*data.available()}
    first = data.available()[0]
    with pytest.raises(ValueError, match="'minst', nor any folder; did you mean 'mnist'"):
        data.load("minst")
    with pytest.raises(ValueError, match=r"'qwertz', nor any folder; choose from: " + first):
        data.load("qwertz")
    other = next(n for n in data.available() if n not in data.available(Dataset))
    with pytest.raises(ValueError, match=rf"'{other}' is of another kind; choose from: cifar"):
        data.load(other, kind=Dataset)
