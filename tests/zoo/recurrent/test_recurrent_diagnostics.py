"""Diagnostics of equilibrated cells agree with autograd and with what the paper proves."""

import pytest
import torch
from drawn_sequences import CELLS

from equilibria.zoo.recurrent.model import ERNN, LSTM, ImplicitERNN, Recurrent
from equilibria.zoo.recurrent.model import diagnostics as d


def sequence(time: int = 12) -> torch.Tensor:
    return torch.randn(time, 3, generator=torch.Generator().manual_seed(2)).double()


def cell(**options):
    torch.manual_seed(0)
    return ERNN(3, 5, dtype=torch.float64, activation="tanh", **options).cells[0]


@pytest.mark.parametrize("name", ["ERNN", "LSTM", "FastGRNN", "GRU"])
def test_gradient_norms_are_those_of_autograd(name):
    torch.manual_seed(0)
    layer = Recurrent(3, 5, cell=CELLS[name](), dtype=torch.float64)
    x = sequence()
    norms = d.gradient_norms(layer.cells[0], x)
    assert norms.shape == (12,)
    for k in (0, 7, 11):
        _, state = layer(x[:k, None]) if k else (None, _zeros(layer))
        h, *rest = state if isinstance(state, tuple) else (state,)

        def end(h, rest=rest, k=k):
            found = layer(x[k:, None], (h, *rest) if rest else h)[1]
            return (found[0] if rest else found).flatten()

        jacobian = torch.autograd.functional.jacobian(end, h).reshape(5, 5)
        torch.testing.assert_close(norms[k], torch.linalg.matrix_norm(jacobian, 2))


def _zeros(layer):
    zeros = torch.zeros(1, 1, 5).double()
    return (zeros, zeros) if isinstance(layer, LSTM) or layer.states == 2 else zeros


def test_the_gradient_through_many_steps_is_one_at_equilibrium():
    torch.manual_seed(0)
    layer = ImplicitERNN(3, 4)
    norms = d.gradient_norms(layer.cells[0], sequence(60).float())
    torch.testing.assert_close(norms, torch.ones(60).double())


def test_the_jacobian_of_a_dense_cell_is_phi_prime_times_u_less_gamma():
    c = cell(gamma=1.2)
    h, x, before = (torch.randn(4, n).double() for n in (5, 3, 5))
    inner = (h + before) @ c.f.U.t() + c.inject(x)
    slope = 1 - torch.tanh(inner) ** 2
    expected = slope[..., None] * c.f.U - 1.2 * torch.eye(5)
    torch.testing.assert_close(d.field_jacobian(c, h, x, before), expected.detach())


def test_the_equilibrium_moves_with_its_input_as_the_formula_says():
    c = cell(bound=0.8)
    x, before = torch.randn(1, 3).double(), torch.randn(1, 5).double()

    def equilibrium(x):
        h = torch.zeros(1, 5).double()
        for _ in range(300):
            h = h + 0.5 * d.field(c, h, x, before)
        return h

    h = equilibrium(x).detach()
    expected = torch.autograd.functional.jacobian(equilibrium, x)[0, :, 0]
    torch.testing.assert_close(d.input_jacobian(c, h, x, before)[0], expected)


def test_euler_steps_converge_linearly_no_slower_than_corollary_1_says():
    c = cell(bound=0.8)
    x, before = torch.randn(6, 3).double(), torch.randn(6, 5).double()
    found = d.euler_steps(c, x, before, size=0.4, steps=15)
    assert (found.condition < 0).all() and (found.norm < 1).all()
    # F is not linear: the bound is that of the worst slope on the way.
    assert (found.rate <= 0.6 + 0.4 * 0.8 + 1e-9).all()
    assert (found.distance[-1] < found.distance[0] ** 5).all()
    assert ((found.distance[1:] / found.distance[:-1]) < 1).all()


def test_a_step_too_large_fails_the_condition():
    c = cell(bound=0.8)
    x, before = torch.randn(6, 3).double(), torch.randn(6, 5).double()
    found = d.euler_steps(c, x, before, size=2.5, steps=3)
    assert (found.condition > 0).any() and (found.norm > 1).all()
