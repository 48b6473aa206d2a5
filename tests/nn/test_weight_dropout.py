"""Weight dropout: one mask per forward, inside a `DEQ` one function with the right gradient."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import equilibria as eq
from equilibria.nn import weight_dropout, weight_norm


def dropped(layer: Any) -> torch.Tensor:
    return layer.weight == 0


def test_entries_are_dropped_in_training_and_the_rest_made_larger():
    torch.manual_seed(0)
    layer: Any = nn.Linear(300, 200)
    before = layer.weight.detach().clone()
    weight_dropout(layer, 0.3)
    first, second = layer.weight, layer.weight
    gone = first == 0
    assert gone.double().mean().item() == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(first, (before / 0.7).masked_fill(gone, 0.0))
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer.weight, before)
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original"]


def test_under_weight_norm_the_lengths_stay():
    torch.manual_seed(0)
    layer: Any = weight_norm(nn.Conv1d(40, 7, 2))
    before, keys = layer.weight.detach().clone(), list(layer.state_dict())
    weight_dropout(layer, 0.5)
    assert list(layer.state_dict()) == keys
    w = layer.weight
    assert 0.4 < dropped(layer).double().mean() < 0.6
    torch.testing.assert_close(w.flatten(1).norm(dim=1), before.flatten(1).norm(dim=1))
    kept = w != 0
    ratio = (w / before)[kept].reshape(-1)
    rows = kept.flatten(1).sum(1).tolist()
    for part in ratio.split(rows):
        torch.testing.assert_close(part, part[:1].expand_as(part))
    layer.eval()
    assert torch.equal(layer.weight, before)


def test_an_output_that_would_lose_all_its_weights_keeps_them():
    torch.manual_seed(0)
    layer: Any = weight_dropout(weight_norm(nn.Linear(1, 400)), 0.5)
    weight = layer.weight
    weight.sum().backward()
    assert (weight != 0).all()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters() if p.grad is not None)


class Cell(nn.Module):
    def __init__(self, apply):
        super().__init__()
        self.linear = apply(nn.Linear(6, 6).double())

    def forward(self, z, u):
        return torch.tanh(self.linear(z) + u)


def small(layer: nn.Linear) -> nn.Linear:
    nn.init.normal_(layer.weight, std=0.15)
    return layer


KINDS = {
    "alone": lambda layer: weight_dropout(small(layer), 0.5),
    "under weight_norm": lambda layer: weight_dropout(weight_norm(small(layer)), 0.5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_with_it_converges_and_has_the_gradient_of_what_it_solved(kind):
    torch.manual_seed(2)
    layer = eq.DEQ(Cell(KINDS[kind]), solver=eq.Anderson(rtol=1e-10, max_evals=100))
    layer.adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-11))
    u = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    # The first draw after the seed is the mask of the forward: the same one for both.
    torch.manual_seed(7)
    sol = layer(u)
    assert (sol.status == eq.Status.CONVERGED).all()
    probe = torch.randn(3, 6, dtype=torch.float64)
    layer(u)  # another forward, with other masks, does not touch the first one's backward
    leaves = [u, *layer.parameters()]
    got = torch.autograd.grad((sol.value * probe).sum(), leaves)

    torch.manual_seed(7)
    linear: Any = layer.cell.linear  # type: ignore[union-attr]
    weight = linear.weight
    assert 5 < (weight == 0).sum() < 31
    z = torch.zeros_like(u)
    for _ in range(200):
        z = torch.tanh(z @ weight.T + linear.bias + u)
    torch.testing.assert_close(sol.value, z)
    wanted = torch.autograd.grad((z * probe).sum(), leaves)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_one_mask_is_drawn_per_forward_and_none_in_eval():
    torch.manual_seed(2)
    layer = eq.DEQ(Cell(KINDS["alone"]), solver=eq.Picard(rtol=1e-8, max_evals=200))
    weights = []
    linear: Any = layer.cell.linear  # type: ignore[union-attr]
    linear.register_forward_pre_hook(lambda module, _: weights.append(module.weight))
    u = torch.randn(3, 6, dtype=torch.float64)
    layer(u)
    assert len(weights) > 5
    assert all(weight is weights[0] for weight in weights)
    layer(u)
    assert not torch.equal(weights[-1], weights[0])
    layer.eval()
    assert torch.equal(layer(u).value, layer(u).value)


def test_copies_are_independent():
    layer: Any = weight_dropout(weight_norm(nn.Linear(5, 4)), 0.5)
    twin = copy.deepcopy(layer)
    torch.manual_seed(0)
    a = layer.weight
    torch.manual_seed(0)
    torch.testing.assert_close(a, twin.weight)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(2.0)
    layer.eval()
    twin.eval()
    assert not torch.allclose(layer.weight, twin.weight)
