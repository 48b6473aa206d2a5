"""Derivatives of a signal with respect to its coordinates, against finite differences."""

import pytest
import torch
from small_representation import EXACT, IMPLICIT, TIGHT, build, points

import equilibria as eq
from equilibria.zoo.signal.model import gradient, hessian, laplacian

KINDS = sorted(IMPLICIT)


def differences(function, x, step=1e-5):
    """d function / dx_i by central differences, on a new last axis."""
    columns = []
    for i in range(x.shape[1]):
        move = torch.zeros_like(x)
        move[:, i] = step
        columns.append((function(x + move) - function(x - move)) / (2 * step))
    return torch.stack(columns, dim=-1)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_first_and_second_derivatives(kind, layers, explicit):
    exact = {} if explicit else EXACT
    model = build(kind, layers=layers, outputs=2, explicit=explicit, **exact)
    x = points()
    first = gradient(model, x)
    assert first.shape == (5, 2, 2) and not first.requires_grad
    expected = differences(lambda x: model(x).output.detach(), x)
    torch.testing.assert_close(first, expected, rtol=1e-6, atol=1e-7)

    second = hessian(model, x)
    assert second.shape == (5, 2, 2, 2)
    expected = differences(lambda x: gradient(model, x), x)
    torch.testing.assert_close(second, expected, rtol=1e-6, atol=1e-6)
    trace = second[..., 0, 0] + second[..., 1, 1]
    torch.testing.assert_close(laplacian(model, x), trace)


@pytest.mark.parametrize("kind", KINDS)
def test_the_third_derivative_of_sound(kind):
    model = build(kind, inputs=1, **EXACT)
    x = points(4, 1).requires_grad_()
    second = hessian(model, x, create_graph=True).flatten(1)
    third = torch.autograd.grad(second.sum(), x)[0]
    expected = differences(lambda x: hessian(model, x).flatten(1), x.detach())
    torch.testing.assert_close(third, expected[:, 0], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_gradients_can_be_learned_from(kind):
    model, x = build(kind, **EXACT), points()
    weight = model.deq.cell.layers[0].parametrizations.weight.original
    loss = lambda: gradient(model, x, create_graph=True).square().sum()  # noqa: E731
    found = torch.autograd.grad(loss(), weight)[0][1, 2]
    step, values = 1e-6, []
    with torch.no_grad():
        for move in (step, -2 * step):
            weight[1, 2] += move
            values.append(loss().detach())
        weight[1, 2] += step
    expected = (values[0] - values[1]) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_it_is_exact_whatever_the_model_is_trained_with():
    truncated = eq.NeumannPhantom(steps=2, damping=1.0)
    model, x = build("sine", adjoint=truncated, **TIGHT), points()
    expected = differences(lambda x: model(x).output.detach(), x)
    linear = eq.Implicit(linear=eq.GMRES(rtol=1e-12))
    torch.testing.assert_close(gradient(model, x, adjoint=linear), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient(model, x), expected, rtol=1e-2, atol=1e-3)
    # through the truncated one, as the released code has it, the derivative is another
    own = x.clone().requires_grad_()
    wrong = torch.autograd.grad(model(own).output.sum(), own)[0]
    assert (wrong - expected[:, 0]).norm() > 0.02 * expected.norm()


def test_a_tighter_solver_is_used():
    model, tight, x = build("sine", solver=eq.Picard(rtol=0.3)), build("sine", **EXACT), points()
    expected = gradient(tight, x)
    exact = {"adjoint": EXACT["adjoint"]}
    assert not torch.allclose(gradient(model, x, **exact), expected, rtol=1e-3)
    found = gradient(model, x, solver=EXACT["solver"], **exact)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_nothing_is_left_on_the_coordinates_or_the_parameters():
    model, x = build("fourier", **EXACT), points()
    with torch.no_grad():
        gradient(model, x)
    assert not x.requires_grad and x.grad is None
    assert all(p.grad is None for p in model.parameters())


def test_an_inexact_adjoint_is_refused():
    with pytest.raises(TypeError, match=r"expected eq.Implicit\(...\), got NeumannPhantom"):
        gradient(build("fourier"), points(), adjoint=eq.NeumannPhantom())


def test_what_is_no_coordinate_is_refused():
    model = build("fourier")
    with pytest.raises(TypeError, match="expected coordinates as a tensor"):
        gradient(model, [[0.0, 0.0]])
    with pytest.raises(ValueError, match=r"expected coordinates \(batch, 2\)"):
        laplacian(model, points(3, 1))
