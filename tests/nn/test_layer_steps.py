"""A layer's step from the state before."""

import pytest
import torch
from torch import nn

import equilibria as eq


class Cell(nn.Module):
    def __init__(self, width=6, dropout=0.0):
        super().__init__()
        self.linear = eq.nn.spectral_norm(nn.Linear(width, width), 0.8)
        self.dropout = eq.nn.VariationalDropout(dropout)

    def forward(self, z, x):
        return torch.tanh(self.dropout(self.linear(z)) + x)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return eq.DEQ(Cell(), adjoint=eq.NeumannPhantom(steps=2, damping=1.0))


def test_steps_lead_to_the_fixed_point(layer):
    x = torch.randn(5, 6)
    sol = layer.advance(torch.zeros(5, 6), x)
    residuals = [float(sol.stats.overall)]
    for _ in range(60):
        sol = layer.advance(sol.value.detach(), x)
        residuals.append(float(sol.stats.overall))
    expected = layer(x, z0=None).value
    torch.testing.assert_close(sol.value, expected, rtol=0, atol=2e-4)
    assert residuals[-1] < 1e-5 and residuals == sorted(residuals, reverse=True)
    assert (sol.status == 0).all()


def test_a_chain_of_solves_with_one_evaluation_does_not_move(layer):
    # why there is `advance`: a solve returns the best iterate that it has evaluated
    x, z = torch.randn(5, 6), torch.randn(5, 6)
    with eq.nn.using(layer, solver=eq.Picard(max_evals=1)):
        assert torch.equal(layer(x, z0=z).value, z)
    assert not torch.equal(layer.advance(z, x).value, z)


def test_normalised_weights_get_their_gradient(layer):
    layer.advance(torch.ones(5, 6), torch.randn(5, 6)).value.sum().backward()
    original = layer.cell.linear.parametrizations.weight.original
    assert original.grad is not None and original.grad.abs().sum() > 0


def test_methods_in_use_are_heeded(layer):
    x, z = torch.randn(5, 6), torch.randn(5, 6)
    weight = layer.cell.linear.parametrizations.weight.original

    def gradient():
        return torch.autograd.grad(layer.advance(z, x).value.sum(), weight)[0]

    usual = gradient()
    with eq.nn.using(layer, adjoint=eq.JacobianFree(), solver=eq.Picard(rtol=1e9)):
        assert not torch.allclose(gradient(), usual)
        assert (layer.advance(z, x).status == 0).all()
    assert (layer.advance(z, x).status == 1).all()
    layer.eval_solver = eq.Picard(rtol=1e9)
    assert (layer.advance(z, x).status == 1).all()
    assert (layer.eval().advance(z, x).status == 0).all()


def test_throw_is_the_layers_or_the_calls(layer):
    x, z = torch.randn(5, 6), torch.randn(5, 6)
    layer.throw = True
    with pytest.raises(eq.SolveError):
        layer.advance(z, x)
    assert (layer.advance(z, x, throw=False).status == 1).all()


def test_dropout_has_one_mask_a_step():
    torch.manual_seed(0)
    layer = eq.DEQ(Cell(dropout=0.5), adjoint=eq.JacobianFree())
    x, z = torch.zeros(5, 6), torch.randn(5, 6)
    assert not torch.equal(layer.advance(z, x).value, layer.advance(z, x).value)
    layer.advance(z, x).value.sum().backward()


def test_half_precision_weights_have_their_remedy(layer):
    with pytest.raises(TypeError, match="Keep the model in float32"):
        layer.half().advance(torch.zeros(2, 6), torch.zeros(2, 6))


def test_any_equilibrium_model_steps():
    torch.manual_seed(0)
    model = eq.models.create("dense", shape=(6,), classes=3, width=8)
    x = torch.randn(4, 6)
    state = model(x).solution.value.detach()
    prediction = model.advance(x, state)
    assert prediction.output.shape == (4, 3)
    torch.testing.assert_close(prediction.output, model(x).output, rtol=0, atol=1e-3)
    assert (prediction.solution.status == 0).all()
