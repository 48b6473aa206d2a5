"""The bound on the adjoint's error, against dense linear algebra and against the error itself."""

import math

import pytest
import torch
from torch import nn

import equilibria as eq
from equilibria.stability import doctor
from equilibria.stability.gradients import smallest_singular_value
from equilibria.stability.jacobian import JacobianOperator

WIDTH = 20


class Tanh(nn.Module):
    """tanh(W z + x) with a W of a given scale, normal or far from it."""

    def __init__(self, scale, skew=0.0):
        super().__init__()
        torch.manual_seed(0)
        weight = scale * torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q
        self.weight = nn.Parameter(weight + skew * torch.triu(torch.randn(WIDTH, WIDTH), 1))

    def forward(self, z, x):
        return torch.tanh(z @ self.weight.T + x)


def inputs(samples=6):
    return torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(1))


MATRICES = {
    "orthogonal": lambda: 0.9 * torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q,
    "symmetric": lambda: (lambda g: (g + g.T) / 8)(torch.randn(WIDTH, WIDTH)),
    "expanding": lambda: 1.5 * torch.randn(WIDTH, WIDTH) / math.sqrt(WIDTH),
    "triangular": lambda: 0.5 * torch.eye(WIDTH) + torch.triu(torch.randn(WIDTH, WIDTH), 1) / 9,
    "zero": lambda: torch.zeros(WIDTH, WIDTH),
}


@pytest.mark.parametrize("name", MATRICES)
def test_smallest_singular_value_agrees_with_dense(name):
    torch.manual_seed(3)
    matrices = torch.stack([MATRICES[name]() for _ in range(5)]).double()
    eye = torch.eye(WIDTH, dtype=torch.float64)
    expected = torch.linalg.svdvals(eye - matrices)[:, -1]
    z = torch.zeros(5, WIDTH, dtype=torch.float64)
    operator = JacobianOperator(
        lambda z, a: torch.einsum("bij,bj->bi", a, z), z, (matrices,), coupled=False
    )
    found = smallest_singular_value(operator, torch.Generator().manual_seed(0))
    assert (found >= expected * (1 - 1e-3)).all()  # from above
    torch.testing.assert_close(found, expected, rtol=0.15, atol=0)


def test_products_of_the_operator_are_those_of_the_matrix():
    torch.manual_seed(4)
    first, second = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    z = (torch.randn(2, 5, dtype=torch.float64), torch.randn(2, 1, 5, dtype=torch.float64))

    def f(z, a, b):
        return torch.einsum("bij,bj->bi", a, z[0]) + z[1][:, 0], torch.einsum(
            "bij,bkj->bki", b, z[1]
        )

    dense = torch.zeros(2, 10, 10, dtype=torch.float64)
    dense[:, :5, :5], dense[:, 5:, 5:] = first, second
    dense[:, :5, 5:] = torch.eye(5)
    operator = JacobianOperator(f, z, (first, second), coupled=False)
    v = torch.randn(2, 10, dtype=torch.float64)
    torch.testing.assert_close(operator.direct(v), torch.einsum("bij,bj->bi", dense, v))
    torch.testing.assert_close(operator.apply_transpose(v), torch.einsum("bij,bi->bj", dense, v))
    none = JacobianOperator(lambda z: torch.ones(2, 3), torch.ones(2, 3), (), coupled=False)
    assert not none.direct(torch.ones(2, 3)).any()


@pytest.mark.parametrize(
    ("scale", "skew", "forward", "backward"),
    [
        (0.95, 0.15, 1e-2, 1e-5),
        (0.95, 0.15, 1e-5, 1e-2),
        (0.95, 0.0, 1e-3, 1e-3),
        (0.5, 0.15, 1e-3, 1e-3),
        (0.5, 0.0, 1e-2, 1e-5),
    ],
)
def test_the_error_stays_below_the_bound(scale, skew, forward, backward):
    layer = eq.DEQ(
        Tanh(scale, skew),
        solver=eq.Picard(rtol=forward, max_evals=500),
        adjoint=eq.Implicit(linear=eq.GMRES(rtol=backward)),
    )
    found = doctor(layer, inputs(), loss=lambda sol: sol.value.sin().square().sum()).gradient.bound
    assert (found.forward, found.adjoint) == (forward, backward)
    assert 0 < found.measured.max <= found.error.max
    # and says something: not more than a few hundred times the error that there is
    assert found.error.p50 < 300 * found.measured.p50


def test_a_linear_map_with_a_linear_loss_has_the_adjoint_s_error_alone():
    class Affine(nn.Module):
        def forward(self, z, x):
            return 0.5 * z.roll(1, 1) + x

    layer = eq.DEQ(Affine(), adjoint=eq.Implicit(linear=eq.Neumann(rtol=1e-2)))
    found = doctor(layer, inputs(), loss=lambda sol: sol.value.sum()).gradient.bound
    assert found.lipschitz.max == pytest.approx(0, abs=1e-9)
    assert found.sigma_min.mean == pytest.approx(0.5, rel=0.1)
    assert found.error.max == pytest.approx(1e-2 / found.sigma_min.max, rel=0.1)


def test_an_adjoint_that_follows_the_forward_solve_is_bounded_by_what_it_follows():
    adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-6), follow=5.0)
    layer = eq.DEQ(Tanh(0.9), solver=eq.Picard(rtol=1e-3), adjoint=adjoint)
    found = doctor(layer, inputs(), loss=lambda sol: sol.value.sin().sum()).gradient.bound
    assert 1e-3 < found.adjoint <= 5e-3
    assert found.measured.max <= found.error.max


def test_a_coupled_batch_is_one_sample():
    layer = eq.DEQ(Tanh(0.5), coupled=True, solver=eq.Picard(rtol=1e-4))
    found = doctor(layer, inputs()).gradient.bound
    assert found.sigma_min.mean == found.sigma_min.max


@pytest.mark.parametrize("adjoint", [eq.JacobianFree(), eq.Phantom(), eq.Unrolled()])
def test_an_adjoint_that_solves_nothing_has_no_bound(adjoint):
    assert doctor(eq.DEQ(Tanh(0.5), adjoint=adjoint), inputs()).gradient.bound is None


def test_where_nothing_converged_nothing_is_promised():
    layer = eq.DEQ(Tanh(0.9), solver=eq.Picard(rtol=1e-6, max_evals=3))
    assert doctor(layer, inputs()).gradient.bound is None
