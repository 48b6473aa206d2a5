"""`Unrolled`: so many steps of the solver, and the derivative of exactly these."""

import functools
from itertools import pairwise

import pytest
import torch
from problems import normal, relative_residual, with_norm
from references import Counted, from_zero, iterate
from torch.func import functional_call, grad, jacrev, vmap

import equilibria as eq

A = with_norm(0.8, 4, seed=1)
X = normal(3, 4, seed=2)
Z0 = torch.zeros_like(X)
CONVERGED, MAX_EVALS, NONFINITE = eq.Status.CONVERGED, eq.Status.MAX_EVALS, eq.Status.NONFINITE


def f(z, x, a=A):
    return torch.tanh(z @ a + x)


def anderson(f, z, x, steps: int):
    """Anderson's method as its paper states it, with all differences."""
    iterates, images = [], []
    for _ in range(steps):
        iterates.append(z)
        images.append(f(z, x))
        z = images[-1]
        if len(iterates) > 1:
            gaps = [b - a for a, b in zip(iterates, images, strict=True)]
            change, moves = (
                torch.stack([b - a for a, b in pairwise(each)], 2) for each in (gaps, images)
            )
            gram = change.mT @ change
            ridge = 8 * torch.finfo(z.dtype).eps * gram.diagonal(dim1=1, dim2=2).diag_embed()
            weights = torch.linalg.solve(gram + ridge, change.mT @ gaps[-1].unsqueeze(2))
            z = z - (moves @ weights).squeeze(2)
    return z


def broyden(f, z, x, steps: int):
    """Broyden's good method with dense matrices, one sample after another."""
    out = []
    for row, here in zip(z.split(1), x.split(1), strict=True):
        inverse = -torch.eye(z.shape[1], dtype=z.dtype)
        gap = f(row, here) - row
        for _ in range(steps):
            step = -gap @ inverse.T
            row = row + step
            after = f(row, here) - row
            y = inverse @ (after - gap).T
            inverse = inverse + (step.T - y) @ (step @ inverse) / (step @ y)
            gap = after
        out.append(row)
    return torch.cat(out)


METHODS = [(eq.Picard(), iterate), (eq.Anderson(history=None), anderson), (eq.Broyden(), broyden)]
DAMPED = eq.Picard(damping=0.7), functools.partial(iterate, damping=0.7)
SOLVERS = [solver for solver, _ in METHODS]
ALL = [*SOLVERS, eq.Auto(), eq.Broyden(memory=2)]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(
    ("solver", "written_out"), [*METHODS, DAMPED], ids=lambda each: getattr(each, "__name__", None)
)
def test_k_evaluations_are_k_steps(solver, written_out, checkpoint: bool) -> None:
    """Value, first and second derivatives are those of the method written out."""
    adjoint = eq.Unrolled(max_evals=3, checkpoint=checkpoint)
    counted = Counted(f)

    def ours(z0, x, a):
        sol = eq.fixed_point(counted, z0, x, eq.shared(a), solver=solver, adjoint=adjoint)
        assert counted.calls == 3 and sol.stats.evals.tolist() == [3] * 3
        return sol.value

    def theirs(z0, x, a):
        return written_out(lambda z, x: f(z, x, a), z0, x, steps=3)

    found = []
    for method in (ours, theirs):
        inputs = [x.clone().requires_grad_() for x in (normal(3, 4, seed=3), X, A)]
        value = method(*inputs)
        first = torch.autograd.grad(value, inputs, normal(3, 4, seed=5), create_graph=True)
        second = torch.autograd.grad(sum(each.sin().sum() for each in first), inputs)
        found.append((value, *first, *second))
        assert all(each.abs().max() > 1e-3 for each in found[-1])
    torch.testing.assert_close(found[0], found[1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_tolerances_shorten_no_path_of_a_given_length(solver) -> None:
    """A sample that begins at its solution, or has arrived, takes every step."""
    with torch.no_grad():
        there = eq.fixed_point(f, Z0, X, solver=eq.Anderson(rtol=1e-13)).value
    start = torch.stack([there[0], Z0[1], there[2]])
    counted = Counted(f)
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(counted, start, x, solver=solver, adjoint=eq.Unrolled(max_evals=6))
    assert counted.calls == 6 and sol.stats.evals.tolist() == [6] * 3
    torch.testing.assert_close(sol.value[[0, 2]], there[[0, 2]], rtol=1e-9, atol=1e-9)
    assert sol.status[[0, 2]].tolist() == [CONVERGED] * 2
    (found,) = torch.autograd.grad(sol.value.sum(), x)
    if isinstance(solver, eq.Picard):
        (wanted,) = torch.autograd.grad(iterate(f, start, x, steps=6).sum(), x)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert found.isfinite().all() and (found != 0).all()


def test_a_sample_at_rest_takes_part_in_the_gradient() -> None:
    """Zero padding: an all-zero row has f(0) = 0, and yet depends on its input."""
    x = torch.cat([X[:1], Z0[:1]]).requires_grad_()
    for adjoint in (eq.Unrolled(max_evals=5), eq.Unrolled()):
        sol = from_zero(f, x, solver=eq.Picard(), adjoint=adjoint)
        (found,) = torch.autograd.grad(sol.value[1].sum(), x)
        count = int(sol.stats.evals[1])
        assert sol.status[1] == CONVERGED and count == (adjoint.max_evals or 1)
        (wanted,) = torch.autograd.grad(iterate(f, 0 * x.detach(), x, steps=count)[1].sum(), x)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
        assert (found[1] != 0).all()


@pytest.mark.parametrize("solver", ALL, ids=repr)
def test_a_warm_start_at_the_solution_is_connected(solver) -> None:
    before = eq.fixed_point(f, Z0, X, solver=eq.Anderson(rtol=1e-13))
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(f, Z0, x, solver=solver, adjoint=eq.Unrolled(), warm=before)
    assert sol.stats.evals.tolist() == [1] * 3 and sol.value.requires_grad
    (found,) = torch.autograd.grad(sol.value.sum(), x)
    (wanted,) = torch.autograd.grad(f(before.value.detach(), x).sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("solver", ALL, ids=repr)
def test_each_sample_takes_the_step_after_its_last_evaluation(solver) -> None:
    """It stays there while others go on, and is the same without gradients."""
    x = X * torch.tensor([[0.01], [1.0], [0.3]])
    calls = []

    def seen(z, x):
        calls.append(z.detach().clone())
        return f(z, x)

    options = {"solver": solver, "adjoint": eq.Unrolled()}
    sol = eq.fixed_point(seen, Z0, x, **options, states=(3, 99))
    evals = sol.stats.evals
    assert (sol.status == CONVERGED).all() and len(set(evals.tolist())) > 1
    last = torch.stack([calls[n - 1][i] for i, n in enumerate(evals.tolist())])
    torch.testing.assert_close(sol.stats.residual, relative_residual(f, last, x))
    for i, n in enumerate(evals.tolist()):
        if n < len(calls):
            assert torch.equal(sol.value[i], calls[n][i])
    assert (relative_residual(f, sol.value, x) < sol.stats.residual).any()
    assert torch.equal(sol.states[1], sol.value)
    torch.testing.assert_close(sol.states[0], calls[3])
    with torch.no_grad():
        plain = eq.fixed_point(f, Z0, x, **options, states=(3, 99))
    torch.testing.assert_close(
        (plain.value, plain.stats.residual, plain.stats.evals, *plain.states),
        (sol.value, sol.stats.residual, sol.stats.evals, *sol.states),
    )


@pytest.mark.parametrize("adjoint", [eq.Unrolled(), eq.Unrolled(max_evals=6)], ids=repr)
def test_a_sample_whose_f_is_not_finite_ends_there(adjoint) -> None:
    def breaks(z, x):
        return torch.where(z.abs() > 2, torch.inf, 1.7 * z + x)

    x = torch.tensor([[0.5], [-0.01]], dtype=torch.float64, requires_grad=True)
    sol = eq.fixed_point(breaks, 0 * x.detach(), x, solver=eq.Picard(max_evals=6), adjoint=adjoint)
    assert sol.status.tolist() == [NONFINITE, MAX_EVALS] and sol.stats.evals.tolist() == [4, 6]
    torch.testing.assert_close(sol.value[0], iterate(breaks, 0 * x, x, steps=3)[0])
    torch.testing.assert_close(sol.value[1], iterate(breaks, 0 * x, x, steps=6)[1])
    assert torch.autograd.grad(sol.value.sum(), x)[0].isfinite().all()


class Cell(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(A.clone())

    def forward(self, z, x):
        return f(z, x, self.a)


def test_under_torch_func() -> None:
    """Value, gradient and Jacobian, also sample by sample."""
    layer = eq.DEQ(Cell(), adjoint=eq.Unrolled(max_evals=4), solver=eq.Picard())
    weights = dict(layer.named_parameters())

    def loss(weights, x):
        return functional_call(layer, weights, (x[None],), {"z0": x[None] / 2}).value.sin().sum()

    def written_out(weights, x):
        a = weights["cell.a"]
        return iterate(lambda z, x: f(z, x, a), x[None] / 2, x[None], steps=4).sin().sum()

    found = vmap(grad(loss, argnums=(0, 1)), in_dims=(None, 0))(weights, X)
    wanted = vmap(grad(written_out, argnums=(0, 1)), in_dims=(None, 0))(weights, X)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    found = vmap(jacrev(grad(loss, argnums=1), argnums=1), in_dims=(None, 0))(weights, X)
    wanted = vmap(jacrev(grad(written_out, argnums=1), argnums=1), in_dims=(None, 0))(weights, X)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_no_step_at_all() -> None:
    """It is z0, of which nothing is known; f is not called."""
    z0 = {"a": Z0.clone().requires_grad_(), "b": torch.ones_like(Z0, requires_grad=True)}
    counted = Counted(lambda z, x: {"a": f(z["a"], x), "b": z["b"] / 2})
    options = {"adjoint": eq.Unrolled(max_evals=0), "solver": eq.Picard()}
    sol = eq.fixed_point(counted, z0, X, **options, states=(0, 2))
    assert not counted.calls and sol.stats.evals.tolist() == [0] * 3
    assert sol.status.tolist() == [MAX_EVALS] * 3 and sol.stats.residual.isinf().all()
    assert torch.equal(sol.value["b"], z0["b"]) and torch.equal(sol.states[1]["a"], Z0)
    assert all(
        (each == 1).all()
        for each in torch.autograd.grad(sum(x.sum() for x in sol.value.values()), [*z0.values()])
    )
    with pytest.raises(eq.SolveError):
        eq.fixed_point(counted, z0, X, **options, throw=True)
    coupled = eq.fixed_point(f, Z0, X, **options, coupled=torch.tensor([0, 0, 1]))
    assert torch.equal(coupled.value, Z0) and coupled.status.tolist() == [MAX_EVALS] * 2


@pytest.mark.parametrize("coupled", [True, torch.tensor([0, 1, 1])], ids=str)
def test_rows_that_are_coupled(coupled) -> None:
    mates = [1, 0, 2] if coupled is True else [0, 2, 1]
    mix = lambda z, x: torch.tanh(z @ A + x) + 0.1 * z[mates]  # noqa: E731
    x = X.clone().requires_grad_()
    options = {"solver": eq.Picard(), "adjoint": eq.Unrolled(max_evals=3), "coupled": coupled}
    sol, wanted = eq.fixed_point(mix, Z0, x, **options).value, iterate(mix, Z0, x, steps=3)
    torch.testing.assert_close(sol, wanted, rtol=1e-12, atol=0)
    found, wanted = (torch.autograd.grad(each.square().sum(), x)[0] for each in (sol, wanted))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
