"""The universality constructions of Bai et al. 2019, values and gradients."""

from typing import Any

import pytest
import torch
from torch import nn

from equilibria.nn import DEQ
from equilibria.nn.constructions import Stacked, WeightTied
from equilibria.solve import GMRES, Anderson, Broyden, Implicit, Picard

EXACT = {"rtol": 1e-13, "max_evals": 500}
ADJOINT = Implicit(linear=GMRES(rtol=1e-12))


@pytest.fixture
def network():
    """Six layers of mixed widths and activations, one of them without a bias."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(5, 8), nn.ReLU()),
        *(nn.Linear(8, 3), nn.Tanh()),
        *(nn.Linear(3, 3, bias=False), nn.Sigmoid(), nn.PReLU()),
        *(nn.Linear(3, 10), nn.LayerNorm(10), nn.GELU()),
        nn.Linear(10, 4),
        *(nn.Linear(4, 2), nn.Softplus()),
    ).double()


def hidden_layers(network, x):
    """The outputs h_1 ... h_L of the network's layers."""
    hidden = []
    for layer in network:
        if isinstance(layer, nn.Linear) and layer is not network[0]:
            hidden.append(x)
        x = layer(x)
    return [*hidden, x]


def test_a_deep_network_is_one_layer_applied_again_and_again(network):
    cell = WeightTied(network)
    assert cell.depth == 6 and cell.widths == [8, 3, 3, 10, 4, 2]
    x = torch.randn(7, 5, dtype=torch.float64)
    expected = torch.cat(hidden_layers(network, x), dim=1)
    for z in (torch.zeros(7, 30, dtype=torch.float64), torch.randn(7, 30, dtype=torch.float64)):
        for step in range(cell.depth):
            assert not torch.allclose(z, expected), f"exact after {step} of {cell.depth} steps"
            z = cell(z, x)
        assert (z - expected).abs().max() < 1e-14
        assert torch.equal(cell(z, x), z)  # a fixed point
    assert torch.equal(
        torch.linalg.matrix_power(cell.recur.weight, 6), torch.zeros(30, 30).double()
    )


@pytest.mark.parametrize("solver", [Picard(**EXACT), Anderson(**EXACT), Broyden(**EXACT)])
def test_its_equilibrium_is_the_network_gradients_included(network, solver):
    cell: Any = WeightTied(network)
    layer = DEQ(cell, solver=solver, adjoint=ADJOINT, init=lambda x: x.new_zeros(7, 30))
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(7, 2, dtype=torch.float64)

    sol = layer(x)
    assert (sol.status == 0).all()
    if isinstance(solver, Picard):
        assert (sol.stats.evals == cell.depth + 1).all()  # the last one sees that nothing moves
    output = cell.split(sol.value)[-1]
    torch.testing.assert_close(output, network(x), rtol=1e-12, atol=1e-12)

    (got,) = torch.autograd.grad((output * probe).sum(), x, retain_graph=True)
    (output * probe).sum().backward(inputs=[*cell.recur.parameters(), *cell.inject.parameters()])
    gradient = torch.autograd.grad((network(x) * probe).sum(), x)[0]
    torch.testing.assert_close(got, gradient)
    (network(x) * probe).sum().backward()
    linears: list[Any] = [m for m in network if isinstance(m, nn.Linear)]
    first, *rest = linears
    torch.testing.assert_close(cell.inject.weight.grad[:8], first.weight.grad)
    for index, linear in enumerate(rest, start=1):
        torch.testing.assert_close(cell.block(cell.recur.weight.grad, index), linear.weight.grad)
    for index, linear in enumerate(linears):
        if linear.bias is not None:
            torch.testing.assert_close(cell.split(cell.inject.bias.grad)[index], linear.bias.grad)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Tanh(), nn.Linear(2, 2)), "begins with"),
        (nn.Sequential(), "begins with"),
        (nn.Sequential(nn.Linear(2, 4), nn.GLU(), nn.Linear(2, 2)), "keep the width"),
    ],
)
def test_networks_it_cannot_rewrite(network, words):
    with pytest.raises(ValueError, match=words):
        WeightTied(network)


class Tanh(nn.Module):
    """A contraction z -> tanh(W z + U x + b)."""

    def __init__(self, inputs, width):
        super().__init__()
        self.recur = nn.Linear(width, width)
        self.inject = nn.Linear(inputs, width, bias=False)
        with torch.no_grad():
            self.recur.weight.mul_(0.8 / torch.linalg.matrix_norm(self.recur.weight, 2))

    def forward(self, z, x):
        return torch.tanh(self.recur(z) + self.inject(x))


@pytest.mark.parametrize("widths", [(6, 4), (4, 7, 3)])
@pytest.mark.parametrize("solver", [Picard(**EXACT), Anderson(**EXACT)])
def test_a_stack_of_equilibria_is_one(widths, solver):
    torch.manual_seed(0)
    cells = [Tanh(i, w).double() for i, w in zip((5, *widths), widths, strict=False)]
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    start = [torch.zeros(3, w, dtype=torch.float64) for w in widths]

    one_by_one, feed = [], x
    for cell, z0 in zip(cells, start, strict=True):
        feed = DEQ(cell, solver=solver, adjoint=ADJOINT)(feed, z0=z0).value
        one_by_one.append(feed)
    together = DEQ(Stacked(*cells), solver=solver, adjoint=ADJOINT)(x, z0=tuple(start))
    assert (together.status == 0).all()
    for a, b in zip(one_by_one, together.value, strict=True):
        assert (a - b).abs().max() < 1e-10

    inputs = [x, *(p for cell in cells for p in cell.parameters())]
    probe = torch.randn_like(feed)
    expected = torch.autograd.grad((one_by_one[-1] * probe).sum(), inputs)
    got = torch.autograd.grad((together.value[-1] * probe).sum(), inputs)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_a_stack_needs_a_cell():
    with pytest.raises(ValueError, match="at least one"):
        Stacked()
