"""Gradients of tiny sequence models, of the Jacobian penalty too, are finite differences'."""

import pytest
import torch

from equilibria.stability import jacobian_penalty
from small_sequences import build, tokens

STEP = 1e-6
KINDS = {
    "deq-transformer": {},
    "deq-transformer-pre": {"pre_norm": True, "affine": True, "direct": True},
    "deq-transformer-plain": {"weight_norm": False, "window": None, "injection_kernel": 2},
    "deq-trellisnet": {},
    "deq-trellisnet-dilated": {"kernel": 3, "dilation": 2, "weight_norm": False},
}
BUILDS = {
    **KINDS,
    "deq-transformer-pieces": {"subsequence": 3},
    "deq-trellisnet-pieces": {"subsequence": 2},
    "transformer-xl": {"tied": False, "injection_scale": None},
    "transformer-xl-tied": {"direct": True},
    "trellisnet": {},
    "trellisnet-untied": {"tied": False},
}


def slope(model, function):
    """The derivative of a function of the model along a random direction: ours, and measured."""
    parameters = list(model.parameters())
    generator = torch.Generator().manual_seed(7)
    direction = [torch.randn(p.shape, generator=generator).double() for p in parameters]
    gradients = torch.autograd.grad(function(), parameters, materialize_grads=True)
    ours = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))

    def at(step):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.add_(d, alpha=step)
        value = function().detach()
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.sub_(d, alpha=step)
        return value

    # Four points: the error is of fourth order in the step.
    near = (at(STEP) - at(-STEP)) * 8
    far = at(2 * STEP) - at(-2 * STEP)
    return ours.item(), ((near - far) / (12 * STEP)).item()


def context(model):
    """A carry that does not move with the parameters, as one from the segment before is."""
    with torch.no_grad():
        return model(tokens(2, 5, seed=3)).carry


@pytest.mark.parametrize("kind", BUILDS)
def test_gradients_are_those_of_finite_differences(kind):
    model = build(kind, **BUILDS[kind])
    carry, x, targets = context(model), tokens(2, 6), tokens(2, 6, seed=2)
    ours, measured = slope(
        model, lambda: model.losses(model(x, carry=carry).output, targets).mean()
    )
    assert ours == pytest.approx(measured, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_jacobian_penalty_are_those_of_finite_differences(kind):
    model = build(kind, **KINDS[kind])
    carry, x = context(model), tokens(2, 6)

    def penalty():
        probes = torch.Generator().manual_seed(9)
        return jacobian_penalty(model(x, carry=carry).solution, samples=2, generator=probes)

    ours, measured = slope(model, penalty)
    assert ours == pytest.approx(measured, rel=1e-4)
