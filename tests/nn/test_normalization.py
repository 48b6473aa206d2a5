"""Weight and spectral normalisation: values, bounds, gradients, copies and errors."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from equilibria.nn import spectral_norm, weight_dropout, weight_norm
from equilibria.nn.normalization import _log_norm


def layers():
    return [
        nn.Linear(5, 7),
        nn.Conv1d(4, 6, 3, padding=1),
        nn.Conv2d(4, 6, 3, padding=1, groups=2),
        nn.Conv2d(3, 6, 3, padding=2, dilation=2),
        nn.Conv2d(3, 5, 3, stride=2),
        nn.Conv3d(2, 3, 3, padding=1),
        nn.ConvTranspose1d(4, 6, 3),
        nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
    ]


@pytest.fixture(params=layers(), ids=lambda m: type(m).__name__)
def layer(request):
    return copy.deepcopy(request.param)


def input_for(layer, size=6):
    if isinstance(layer, nn.Linear):
        return torch.randn(1, layer.in_features, dtype=layer.weight.dtype)
    axes = layer.weight.ndim - 2
    return torch.randn(1, layer.in_channels, *[size] * axes, dtype=layer.weight.dtype)


def operator_norm(layer):
    """Largest singular value of the layer's linear map, as a dense matrix."""
    x = input_for(layer)
    f = lambda v: (layer(v.view_as(x)) - layer(torch.zeros_like(x))).flatten()  # noqa: E731
    return torch.linalg.matrix_norm(torch.func.jacrev(f)(x.flatten()).detach(), 2).item()


@pytest.mark.parametrize("apply", [weight_norm, lambda m: spectral_norm(m, 100.0)])
def test_at_first_the_layer_computes_what_it_did(layer, apply):
    before = copy.deepcopy(layer)
    assert apply(layer) is layer
    x = input_for(layer)
    torch.testing.assert_close(layer(x), before(x))


def test_weight_norm_has_one_length_for_each_output(layer: Any):
    transposed = "Transpose" in type(layer).__name__
    outputs = layer.weight.shape[1 if transposed else 0]
    weight_norm(layer)
    assert layer.parametrizations.weight.original0.numel() == outputs


def test_spectral_norm_bounds_the_map(layer):
    layer = layer.double()
    with torch.no_grad():
        layer.weight.mul_(20)
    spectral_norm(layer, 0.9)
    norm = operator_norm(layer)
    assert norm <= 0.9 * (1 + 1e-9)
    assert norm > 0.9 / 4  # not careful beyond reason
    if isinstance(layer, nn.Linear):
        assert norm == pytest.approx(0.9, rel=0.01)


def test_a_constant_kernel_reaches_the_bound():
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False).double()
    nn.init.constant_(conv.weight, 5.0)
    spectral_norm(conv, 1.0).eval()
    x = torch.ones(1, 1, 60, 60, dtype=torch.float64)
    assert conv(x)[..., 1:-1, 1:-1].sub(1).abs().max() < 1e-12


def test_spectral_norm_leaves_small_weights_alone():
    layer = nn.Linear(4, 4)
    weight = layer.weight.detach().clone()
    spectral_norm(layer, 100.0)
    assert torch.equal(layer.weight, weight)


def test_the_bound_holds_while_training():
    torch.manual_seed(0)
    layer = spectral_norm(nn.Linear(20, 20), 0.9)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x, norms = torch.randn(64, 20), []
    for _ in range(100):
        loss = (layer(x) - 5 * x).square().mean()  # pulls all singular values up
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        norms.append(torch.linalg.matrix_norm(layer.weight.detach(), 2).item())
    assert max(norms) <= 0.9 * (1 + 1e-5)
    assert norms[-1] > 0.9 * 20 ** (-1 / 128) * (1 - 1e-5)


@pytest.mark.parametrize("squarings", [0, 1, 3, 5, 8])
@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (1, 5)])
def test_the_norm_is_a_schatten_norm(squarings, shape):
    matrix = torch.randn(shape, dtype=torch.float64)
    order = 2 ** (squarings + 2)
    values = torch.linalg.svdvals(matrix)
    exact = values[0] * (values / values[0]).pow(order).sum().pow(1 / order)
    torch.testing.assert_close(_log_norm(matrix, squarings).exp(), exact)
    torch.testing.assert_close(_log_norm(1e9 * matrix, squarings).exp(), 1e9 * exact)


def test_a_weight_of_zeros_may_grow_only_to_the_bound():
    layer: Any = nn.Linear(6, 6)
    nn.init.zeros_(layer.weight)
    spectral_norm(layer, 1.0)
    layer.weight.sum().backward()
    original = layer.parametrizations.weight.original
    assert torch.equal(original.grad, torch.ones(6, 6))
    layer.weight = 10 * torch.randn(6, 6)
    assert original.abs().max() > 5
    assert torch.linalg.matrix_norm(layer.weight.detach(), 2).item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("apply", [weight_norm, lambda m: spectral_norm(m, 0.3)])
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), lambda: nn.ConvTranspose1d(2, 3, 2)])
def test_gradients_to_second_order(apply, make):
    # Torch's own weight norm has wrong second derivatives here.
    layer = apply(make().double())
    names = [n for n, _ in layer.named_parameters()]
    x = input_for(layer)

    def run(*values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), x)

    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(run, parameters)
    assert torch.autograd.gradgradcheck(run, parameters)


def test_weight_norm_is_that_of_torch():
    ours: Any = weight_norm(nn.Conv2d(3, 4, 3))
    theirs: Any = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    theirs.load_state_dict(ours.state_dict())
    probe = torch.randn(4, 3, 3, 3)
    torch.testing.assert_close(ours.weight, theirs.weight)
    for layer in (ours, theirs):
        (layer.weight * probe).sum().backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("apply", [weight_norm, lambda m: spectral_norm(m, 0.3)])
def test_transforms_and_autocast(apply):
    layer = apply(nn.Linear(4, 4))
    x = torch.randn(2, 4)

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, x).square().sum()

    got = torch.func.grad(loss)(dict(layer.named_parameters()))
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = layer.weight
    assert torch.equal(reduced, layer.weight)


@pytest.mark.parametrize("apply", [weight_norm, lambda m: spectral_norm(m, 0.5)])
def test_copies(apply):
    net: Any = apply(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))).eval()
    x = torch.randn(2, 3)
    twin = copy.deepcopy(net)
    assert torch.equal(twin(x), net(x))
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(-0.5)
    assert not torch.allclose(twin(x), net(x))
    net.load_state_dict(twin.state_dict())
    assert torch.equal(twin(x), net(x))
    torch.testing.assert_close(net.double()(x.double()).float(), twin(x))
    parametrize.remove_parametrizations(twin[0], "weight")
    assert isinstance(twin[0].weight, nn.Parameter)


def test_every_layer_of_a_module_and_nothing_else():
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Sequential(nn.Conv1d(3, 3, 1)))
    weight_norm(net)
    done = [n for n, m in net.named_modules() if parametrize.is_parametrized(m)]
    assert done == ["0", "2.0"]


def tied():
    net: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    return net


def half_dropped(module):
    return weight_dropout(module, 0.5)


def zero_row():
    net: Any = nn.Sequential(nn.Linear(3, 3))
    nn.init.zeros_(net[0].weight[1].detach())
    return net


@pytest.mark.parametrize(
    ("apply", "module", "words"),
    [
        (weight_norm, nn.Sequential(nn.Tanh()), "contains no"),
        (weight_norm, nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(4)), "'1' is lazy"),
        (weight_norm, tied(), "'0' and '1' share"),
        (weight_norm, zero_row(), "'0' has an output"),
        (weight_norm, nn.Sequential(nn.Linear(2, 2), spectral_norm(nn.Linear(2, 2))), "'1' is alr"),
        (lambda m: spectral_norm(m, 0.0), nn.Linear(2, 2), "bound"),
        (lambda m: spectral_norm(m, float("nan")), nn.Linear(2, 2), "bound"),
        (lambda m: spectral_norm(m, squarings=-1), nn.Linear(2, 2), "squarings"),
        (lambda m: weight_dropout(m, 1.0), nn.Linear(2, 2), r"in \[0, 1\)"),
        (lambda m: weight_dropout(m, -0.1), nn.Linear(2, 2), r"in \[0, 1\)"),
        (half_dropped, nn.Tanh(), "contains no linear"),
        (half_dropped, nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(4)), "'1' is lazy"),
        (half_dropped, tied(), "'0' and '1' share"),
        (half_dropped, spectral_norm(nn.Linear(3, 3)), "already .BoundedNorm"),
        (half_dropped, half_dropped(nn.Linear(3, 3)), "already .DroppedEntries"),
        (half_dropped, half_dropped(weight_norm(nn.Linear(3, 3))), "already .DroppedDirection"),
    ],
)
def test_errors_leave_the_module_as_it_was(apply, module, words):
    keys = list(module.state_dict())
    with pytest.raises(ValueError, match=words):
        apply(module)
    assert list(module.state_dict()) == keys
