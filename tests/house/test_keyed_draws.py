"""Draws that belong to samples: the same however a batch is split."""

import threading

import pytest
import torch
from torch import Tensor

from equilibria import draws

FILLS = {
    "normal": Tensor.normal_,
    "uniform": Tensor.uniform_,
    "kept": draws.keep_mask(0.3),
    "exponential": Tensor.exponential_,
}


def drawn(fill, first, last, *shape, axis=0):
    with draws.key_rows("seed 0, step 3", slice(first, last)):
        return [draws.for_samples(torch.empty(*shape), fill, axis=axis) for _ in range(2)]


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_rows_have_the_same_numbers_in_every_split(fill):
    whole = drawn(fill, 0, 6, 6, 40)
    for parts in ((2, 4), (1, 2, 3), (1,) * 6):
        ends = torch.tensor(parts).cumsum(0).tolist()
        split = [drawn(fill, end - n, end, n, 40) for n, end in zip(parts, ends, strict=True)]
        for number in range(2):
            assert torch.equal(torch.cat([each[number] for each in split]), whole[number])
    assert not torch.equal(*whole)
    assert len({tuple(row.tolist()) for row in whole[0]}) == 6


def test_samples_may_be_counted_along_another_axis():
    rows = drawn(Tensor.normal_, 0, 4, 4, 5)[0]
    columns = drawn(Tensor.normal_, 0, 4, 5, 4, axis=1)[0]
    assert torch.equal(rows.T, columns)


def test_several_entries_of_a_sample_are_drawn_together():
    whole = drawn(Tensor.normal_, 0, 4, 8, 3)[0]
    assert torch.equal(drawn(Tensor.normal_, 2, 4, 4, 3)[0], whole[4:])


def test_a_batch_that_is_no_multiple_of_its_samples_is_drawn_as_one():
    a, b = drawn(Tensor.normal_, 0, 4, 7, 3)[0], drawn(Tensor.normal_, 0, 4, 7, 3)[0]
    assert torch.equal(a, b)
    assert len(a.unique()) == a.numel()


def test_what_a_batch_shares_is_the_same_for_all_its_parts():
    def shared(first, last):
        with draws.key_rows("step 3", slice(first, last)):
            return draws.for_batch(torch.empty(9), Tensor.normal_)

    assert torch.equal(shared(0, 2), shared(5, 6))


def test_another_key_gives_other_numbers():
    found = []
    for name in ("step 1", "step 2"):
        with draws.key_rows(name, slice(0, 3)):
            found.append(draws.for_samples(torch.empty(3, 2), Tensor.normal_))
    assert not (found[0] == found[1]).any()


def test_without_a_key_numbers_are_those_of_the_global_generator():
    torch.manual_seed(3)
    wanted = torch.randn(4, 5), torch.empty(3).bernoulli_(0.7)
    torch.manual_seed(3)
    assert torch.equal(draws.for_samples(torch.empty(4, 5), Tensor.normal_), wanted[0])
    assert torch.equal(draws.for_batch(torch.empty(3), draws.keep_mask(0.3)), wanted[1])
    assert draws.rows(3).tolist() == [0, 1, 2]


def test_a_key_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    drawn(Tensor.normal_, 0, 3, 3, 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_key_holds_in_its_own_thread():
    torch.manual_seed(0)
    wanted = torch.randn(3)
    found = []
    torch.manual_seed(0)
    with draws.key_rows("step", slice(4, 7)):
        assert draws.rows(3).tolist() == [4, 5, 6]
        other = threading.Thread(
            target=lambda: found.append(draws.for_samples(torch.empty(3), Tensor.normal_))
        )
        other.start()
        other.join()
    assert torch.equal(found[0], wanted)


def test_masks_of_neighbouring_rows_and_steps_are_independent():
    masks = []
    for step in range(40):
        with draws.key_rows(f"masks 0 {step}", slice(0, 50)):
            masks.append(draws.for_samples(torch.empty(50, 100), draws.keep_mask(0.25)))
    kept = torch.stack(masks)
    assert abs(float(kept.mean()) - 0.75) < 4 * (0.75 * 0.25 / kept.numel()) ** 0.5
    centred = kept - 0.75
    for pairs in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        assert abs(float(pairs.mean())) < 4 * 0.75 * 0.25 / pairs.numel() ** 0.5


def test_a_fork_leaves_the_draws_that_follow_alone():
    with draws.key_rows("step", slice(0, 3)):
        draws.for_samples(torch.empty(3, 2), Tensor.normal_)
        found = []
        for _ in range(2):
            with draws.fork():
                found.append([draws.for_samples(torch.empty(3), Tensor.normal_) for _ in range(2)])
        after = draws.for_samples(torch.empty(3), Tensor.normal_)
    assert torch.equal(found[0][0], after) and not torch.equal(found[0][1], after)
    assert all(map(torch.equal, *found))
    with draws.fork():
        draws.for_batch(torch.empty(3), Tensor.normal_)


def test_noise_has_the_size_of_each_sample():
    x = (
        torch.ones(6, 300, 10)
        * torch.tensor([0, 1e-38, 0.5, 1e30, torch.inf, torch.nan])[:, None, None]
    )
    wanted = torch.tensor([1, 1e-38, 0.5, 1e30, 1, 1], dtype=torch.float64)
    with draws.key_rows("step", slice(0, 6)):
        noise = draws.noise_like(x)
    rms = noise.double().square().mean((1, 2)).sqrt()
    torch.testing.assert_close(rms, wanted, rtol=0.1, atol=0)
    with draws.key_rows("step", slice(2, 4)):
        assert torch.equal(draws.noise_like(x[2:4]), noise[2:4])
    assert draws.noise_like(torch.ones(3)).shape == (3,)
