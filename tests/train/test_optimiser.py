"""Optimisers: what sets them apart is what the papers' recipes depend on."""

import pytest
import torch
from torch import nn

from equilibria.train.optimiser import SGD, Adam, AdamW


def moved(optimiser, gradient, steps=1):
    """How far a weight of 1 has gone, at a constant gradient."""
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight)
    torch_one = optimiser.build(model)
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
