"""Batch normalisation that is evaluated after a few steps."""

import torch
from torch import nn

from equilibria.zoo.vision.model.mdeq import BatchNorm2d


def batches(count):
    generator = torch.Generator().manual_seed(0)
    return [5.0 + 0.1 * torch.randn(64, 3, 4, 4, generator=generator) for _ in range(count)]


def test_after_a_few_batches_an_evaluation_is_normalised():
    for count in (1, 3, 20):
        norm, torchs = BatchNorm2d(3), nn.BatchNorm2d(3)
        for batch in batches(count):
            assert torch.equal(norm(batch), torchs(batch))  # in training it is torch's
        found = norm.eval()(batches(1)[0])
        assert found.mean().abs() < 0.2 and 0.8 < found.std() < 1.2
        assert torchs.eval()(batches(1)[0]).mean().abs() > 0.5
        assert all(map(torch.equal, norm.state_dict().values(), torchs.state_dict().values()))


def test_before_a_batch_and_after_many_it_is_torchs():
    norm, torchs = BatchNorm2d(3).eval(), nn.BatchNorm2d(3).eval()
    batch = batches(1)[0]
    assert torch.equal(norm(batch), torchs(batch))
    for each in (norm, torchs):
        each.train()
        for k in range(300):
            each(batch * (1 + k % 2))
        each.eval()
    assert torch.equal(norm(batch), torchs(batch))


def test_a_channel_that_is_always_zero_stays_zero():
    norm = BatchNorm2d(3)
    for _ in range(3):
        norm(torch.zeros(4, 3, 2, 2))
    assert norm.eval()(torch.zeros(4, 3, 2, 2)).abs().max() < 1e-2
