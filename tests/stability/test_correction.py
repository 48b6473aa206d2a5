"""The sparse fixed-point correction: where its states lie, what they weigh, what they teach."""

import pytest
import torch

import equilibria as eq
from equilibria.stability import FixedPointCorrection


@pytest.mark.parametrize(
    ("count", "evals", "expected"),
    [(1, 12, (6,)), (2, 12, (4, 8)), (3, 40, (10, 20, 30)), (1, 1, (1,)), (2, 2, (1, 1))],
)
def test_states_cut_the_path_into_equal_parts(count, evals, expected):
    assert FixedPointCorrection(count=count).depths(evals) == expected
    assert FixedPointCorrection(count=count, evals=evals).depths(999) == expected


def test_the_later_the_state_the_heavier():
    correction = FixedPointCorrection(count=3, gamma=0.5)
    states = [torch.tensor(value) for value in (100.0, 10.0, 1.0)]
    assert float(correction(lambda z: z, states)) == 0.125 * 100 + 0.25 * 10 + 0.5 * 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_state_has_the_gradient_of_one_step_at_it(count):
    """f = w z + x from 0 by Picard: z_k = x (1 + ... + w^(k-1)), and df/dw at z_k is z_k."""
    w = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    x = torch.ones(1, 1, dtype=torch.float64)
    correction = FixedPointCorrection(count=count, gamma=0.8)
    depths = correction.depths(8)
    sol = eq.fixed_point(lambda z, x: w * z + x, 0 * x, x, solver=eq.Picard(), states=depths)
    total = correction(lambda z: z.sum(), sol.states)
    values = [(1 - 0.5**k) / 0.5 for k in depths]
    weights = [0.8 ** (count - i) for i in range(count)]
    assert float(total.detach()) == pytest.approx(
        sum(a * b for a, b in zip(weights, values, strict=True))
    )
    (found,) = torch.autograd.grad(total, w)
    assert float(found) == pytest.approx(sum(a * b for a, b in zip(weights, values, strict=True)))


def test_any_state_tree_and_model():
    model = eq.models.create("dense", width=16)
    correction = FixedPointCorrection(count=2)
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6)
    prediction = model(x, states=correction.depths(6))

    def loss(z):
        return torch.nn.functional.cross_entropy(model.readout(z), y)

    correction(loss, prediction.solution.states).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("option", ["count", "evals", "gamma"])
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_impossible_options_are_refused(option, value):
    said = "gamma must lie in" if option == "gamma" else f"{option} must be "
    with pytest.raises(ValueError, match=said):
        FixedPointCorrection(**{option: value})


def test_states_that_were_not_asked_for_are_missed():
    with pytest.raises(ValueError, match="expected 1 states, got 0"):
        FixedPointCorrection()(lambda z: z.sum(), ())
