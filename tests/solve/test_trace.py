"""What can be seen of the path: residual traces, and iterates after named evaluations."""

import functools
from functools import partial

import pytest
import torch
from problems import BY_NAME, flat, normal, relative_residual
from references import Counted, iterate

import equilibria as eq


def easy_and_hard(z, r):
    """A contraction with a rate for each sample."""
    return r * torch.cos(z) + 0.5


RATES = torch.tensor([[0.1], [0.9], [0.5]], dtype=torch.float64)
Z0 = torch.zeros(3, 4, dtype=torch.float64)


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Anderson(), eq.Broyden()])
def test_trace(solver) -> None:
    sol = eq.fixed_point(easy_and_hard, Z0, RATES, solver=solver, trace=True)
    trace, evals = sol.stats.trace, sol.stats.evals
    assert trace.shape == (evals.max(), 3)
    assert len(set(evals.tolist())) > 1
    for i, n in enumerate(evals.tolist()):
        assert trace[:n, i].isfinite().all() and trace[n:, i].isnan().all()
        assert trace[:n, i].min() == sol.stats.residual[i]
    torch.testing.assert_close(trace[0], relative_residual(easy_and_hard, Z0, RATES))


@pytest.mark.parametrize("seen", [{"trace": True}, {"states": (1, 3)}], ids=str)
@pytest.mark.parametrize("options", [{}, {"solver": eq.Anderson(), "drop_finished": True}], ids=str)
def test_to_look_changes_nothing(seen, options) -> None:
    plain = eq.fixed_point(easy_and_hard, Z0, RATES, **options)
    traced = eq.fixed_point(easy_and_hard, Z0, RATES, **seen, **options)
    assert torch.equal(plain.value, traced.value)
    assert torch.equal(plain.stats.evals, traced.stats.evals)


def test_trace_per_leaf() -> None:
    problem = BY_NAME["tree"]
    sol = problem.solve(trace=True)
    leaf_trace = sol.stats.leaf_trace
    assert leaf_trace.shape == (sol.stats.evals.max(), 3, 3)
    # The first evaluation is of z0 = 0: there the gap of every leaf is f itself.
    first = problem.f(problem.z0, *problem.operands, *problem.weights)
    for leaf, values in enumerate((first["vector"], *first["pair"])):
        wanted = (values != 0).flatten(1).any(1).double() if values.dim() > 1 else (values != 0)
        torch.testing.assert_close(leaf_trace[0, leaf], wanted.double())


def test_states_are_the_iterates() -> None:
    """z^[k] after k evaluations: z^[0] is z0, and after the end the final value."""
    counts = (0, 1, 2, 5, 80)
    sol = eq.fixed_point(easy_and_hard, Z0 + 0.1, RATES, solver=eq.Picard(), states=counts)
    assert len(sol.states) == len(counts)
    assert torch.equal(sol.states[0], Z0 + 0.1)
    for k in (1, 2):
        torch.testing.assert_close(
            sol.states[k], iterate(easy_and_hard, Z0 + 0.1, RATES, steps=k), rtol=1e-14, atol=0
        )
    assert torch.equal(sol.states[4], sol.value)
    # Sample 0 has finished by then, sample 1 has not.
    assert sol.stats.evals[0] <= 6 < sol.stats.evals[1]
    assert torch.equal(sol.states[3][0], sol.value[0])
    wanted = iterate(easy_and_hard, Z0 + 0.1, RATES, steps=5)
    torch.testing.assert_close(sol.states[3][1], wanted[1], rtol=1e-14, atol=0)


def test_states_of_a_tree() -> None:
    problem = BY_NAME["tree"]
    sol = problem.solve(solver=eq.Broyden(), states=(1, 100))
    first = problem.f(problem.z0, *problem.operands, *problem.weights)
    torch.testing.assert_close(flat(sol.states[0]), flat(first), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sol.states[1], sol.value)


def test_states_carry_a_one_step_gradient() -> None:
    """The gradient of z^[k] is that of f at z^[k], held fixed. papers: Bai 2022 (thesis), 5.16."""
    x = normal(3, 4, seed=2).requires_grad_()
    f = lambda z, x: 0.5 * torch.sin(z) + x  # noqa: E731
    sol = eq.fixed_point(f, Z0, x, solver=eq.Picard(), states=(1, 3))
    for state, k in zip(sol.states, (1, 3), strict=True):
        (got,) = torch.autograd.grad((state**2).sum(), x, retain_graph=True)
        torch.testing.assert_close(got, 2 * iterate(f, Z0, x.detach(), steps=k), rtol=1e-12, atol=0)


def test_losses_along_the_path_and_at_the_end_add_up() -> None:
    x = normal(3, 4, seed=2).requires_grad_()
    f = lambda z, x: 0.5 * torch.sin(z) + x  # noqa: E731
    options = {"solver": eq.Picard(rtol=1e-10), "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-10))}
    sol = eq.fixed_point(f, Z0, x, **options, states=(2,))
    both = torch.autograd.grad(sol.value.sum() + sol.states[0].sum(), x)[0]
    end = torch.autograd.grad(eq.fixed_point(f, Z0, x, **options).value.sum(), x)[0]
    torch.testing.assert_close(both, end + 1, rtol=1e-6, atol=1e-6)


SOLVERS = [
    eq.Picard,
    partial(eq.Picard, damping=0.6),
    eq.Anderson,
    partial(eq.Anderson, history=None),
    functools.partial(eq.Anderson, period=3),
    eq.Broyden,
    partial(eq.Broyden, memory=2),  # of Auto the budget decides what is accelerated
]
MIXED = torch.tensor([0.01, -2.0, 0.5, 0.97, 50.0, 0.1, 0.9, 0.2], dtype=torch.float64)


def mixed(z, r):
    """Samples that converge, at different times, and samples that do not."""
    return r[:, None] * torch.sin(2 * z.roll(1, dims=1)) + torch.linspace(0.1, 1, 5).double()


@torch.no_grad()
@pytest.mark.parametrize(("returns", "drop_finished"), [("best", False), ("last", True)])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_a_state_at_the_end_of_the_budget(solver, returns: str, drop_finished: bool) -> None:
    """z_k is what k evaluations have led to, whether there is a budget for more or not."""
    z0 = torch.full((8, 5), 0.3, dtype=torch.float64)
    options = {"returns": returns, "drop_finished": drop_finished}
    finished = set()
    for k in (1, 2, 3, 5, 6, 9):
        f = Counted(mixed)
        short = eq.fixed_point(
            f, z0, MIXED, solver=solver(rtol=1e-2, max_evals=k), states=(k, k + 5), **options
        )
        long = eq.fixed_point(
            mixed, z0, MIXED, solver=solver(rtol=1e-2, max_evals=90), states=(k,), **options
        )
        assert f.calls == k == short.stats.evals.max()
        torch.testing.assert_close(short.states[0], long.states[0], rtol=1e-9, atol=1e-9)
        done = short.status == eq.Status.CONVERGED
        assert torch.equal(short.states[0][done], short.value[done])
        assert torch.equal(short.states[1], short.value)
        moved = (short.states[0] != short.value).any(1)
        assert moved[~done].any() and not moved[done].any()
        finished.add(int(done.sum()))
    assert 0 in finished and max(finished) > 2


def test_a_newton_state_at_the_end_of_the_budget_is_a_plain_step() -> None:
    z0 = torch.full((8, 5), 0.3, dtype=torch.float64)
    solver = eq.NewtonKrylov(max_evals=1)
    sol = eq.fixed_point(mixed, z0, MIXED, solver=solver, states=(1,))
    assert sol.stats.evals.tolist() == [1] * 8
    torch.testing.assert_close(sol.states[0], mixed(z0, MIXED), rtol=1e-12, atol=0)


def test_a_mapped_state_at_the_end_of_the_budget() -> None:
    def second(z0):
        return eq.fixed_point(mixed, z0, MIXED, solver=eq.Picard(max_evals=2), states=(2,)).states

    z0 = normal(3, 8, 5, seed=4)
    (found,) = torch.vmap(second)(z0)
    for each, start in zip(found, z0, strict=True):
        torch.testing.assert_close(each, mixed(mixed(start, MIXED), MIXED))
