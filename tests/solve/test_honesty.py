"""What would be a wrong answer in silence: each is right, or an error that says so."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from references import from_zero
from torch import nn
from torch.func import grad, jvp
from torch.utils.checkpoint import checkpoint

import equilibria as eq

B, D = 3, 4
GENERATOR = torch.Generator().manual_seed(0)
A = 0.2 * torch.randn(B, D, D, dtype=torch.float64, generator=GENERATOR)[0]
X = torch.randn(B, D, dtype=torch.float64, generator=GENERATOR)
TIGHT = {
    "solver": eq.Anderson(rtol=1e-12),
    "adjoint": eq.Implicit(linear=eq.DirectSolve(rtol=1e-10)),
}
UNROLLED = {"solver": eq.Anderson(rtol=1e-12), "adjoint": eq.Unrolled()}


def start() -> torch.Tensor:
    return torch.zeros(B, D, dtype=torch.float64)


def close(got, wanted) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_leaf_that_is_operand_and_closed_over(create_graph: bool) -> None:
    w = X.clone().requires_grad_()
    results = []
    for options in (TIGHT, UNROLLED):
        sol = eq.fixed_point(lambda z, x: torch.tanh(z @ A + x + w), start(), w, **options)
        results += torch.autograd.grad(sol.value.sum(), w, create_graph=create_graph)
    close(*results)


def test_operand_and_closed_over_under_transforms() -> None:
    def value(x, options):
        return eq.fixed_point(lambda z, y: torch.tanh(z @ A + y + x), start(), x, **options).value

    total = [lambda x, o=o: value(x, o).sum() for o in (TIGHT, UNROLLED)]
    close(*[grad(f)(X) for f in total])
    close(*[jvp(f, (X,), (torch.ones_like(X),))[1] for f in total])


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("closed_over", [False, True])
def test_complex_tensors(closed_over: bool, create_graph: bool) -> None:
    c = torch.complex(X, 2 * X + 1).requires_grad_()
    results = []
    for options in (TIGHT, UNROLLED):

        def f(z, c):
            return torch.tanh(z @ A + c.real + 2 * c.imag)

        if closed_over:
            sol = eq.fixed_point(lambda z: f(z, c), start(), **options)
        else:
            sol = eq.fixed_point(f, start(), c, **options)
        results += torch.autograd.grad(sol.value.sum(), c, create_graph=create_graph)
    close(*results)


def test_a_loop_variable_assigned_anew_is_an_error() -> None:
    def solve():
        h = X
        for linear in [nn.Linear(D, D, dtype=torch.float64) for _ in range(2)]:
            h = eq.fixed_point(
                lambda z, x: torch.tanh(0.3 * linear(z) + x),  # noqa: B023
                start(),
                h,
                **TIGHT,
            ).value
        return h

    with pytest.raises(RuntimeError, match="'linear', which has been assigned anew"):
        solve().sum().backward()


def test_f_that_draws_random_numbers_is_an_error_in_backward() -> None:
    x = X.clone().requires_grad_()
    solver = eq.Anderson(rtol=0.5)
    sol = eq.fixed_point(lambda z, x: 0.1 * z + x * torch.rand(B, 1), start(), x, solver=solver)
    with pytest.raises(RuntimeError, match="random numbers"):
        for _ in range(20):  # any single draw may be close to the one before
            sol.value.sum().backward(retain_graph=True)


def test_scripted_cell_inside_a_checkpoint() -> None:
    linear = nn.Linear(D, D, dtype=torch.float64)
    scripted = torch.jit.script(linear)

    def layer(x):
        f = lambda z, x: torch.tanh(0.3 * scripted(z) + x)  # noqa: E731
        return eq.fixed_point(f, start(), x, **TIGHT).value.sum()

    (wanted,) = torch.autograd.grad(layer(X), linear.bias)
    (got,) = torch.autograd.grad(checkpoint(layer, X, use_reentrant=False), linear.bias)
    with torch.autograd.graph.save_on_cpu():
        loss = layer(X)
    (offloaded,) = torch.autograd.grad(loss, linear.bias)
    assert wanted.any()
    close(got, wanted)
    close(offloaded, wanted)


def test_absolute_tolerance_returns_what_reached_it() -> None:
    """Near a solution 0 the relative residual does not fall, and says nothing."""
    for solver in (eq.Picard, eq.Anderson):
        sol = eq.fixed_point(
            lambda z: 0.9 * z + 1e-3 * torch.sin(z) * z,
            torch.ones(2, 3, dtype=torch.float64),
            solver=solver(rtol=0.0, atol=1e-3, max_evals=500),
        )
        image = 0.9 * sol.value + 1e-3 * torch.sin(sol.value) * sol.value
        assert (sol.status == eq.Status.CONVERGED).all()
        assert ((image - sol.value).square().mean(1).sqrt() <= 1e-3).all()


def test_unrolled_returns_the_last_iterate_with_and_without_grad() -> None:
    f = lambda z: 3.0 - 2.0 * z  # moves away from its fixed point 1  # noqa: E731
    options = {"solver": eq.Picard(max_evals=8, rtol=1e-9), "adjoint": eq.Unrolled()}
    z = torch.full((1, 1), 1.1, dtype=torch.float64)
    tracked = eq.fixed_point(f, z, **options)
    with torch.no_grad():
        plain = eq.fixed_point(f, z, **options)
    close(tracked.value, 1 + 0.1 * (-2.0) ** 8 * torch.ones(1, 1, dtype=torch.float64))
    assert torch.equal(tracked.value, plain.value)
    assert torch.equal(tracked.stats.residual, plain.stats.residual)
    best = eq.fixed_point(f, z, solver=options["solver"])
    assert torch.equal(best.value, z)


def test_phantom_throws_for_what_it_returns() -> None:
    turn = torch.tensor([[0.0, -3.0], [3.0, 0.0]], dtype=torch.float64)
    b = torch.ones(1, 2, dtype=torch.float64)
    with pytest.raises(eq.SolveError):  # the solve converges, the steps run away
        from_zero(
            lambda z, b: z @ turn + b, b, adjoint=eq.Phantom(steps=30, damping=1.0), throw=True
        )
    f = lambda z, x: torch.tanh(z @ A + x)  # noqa: E731
    sol = eq.fixed_point(  # the solve does not, the steps do
        f,
        start(),
        X,
        solver=eq.Picard(max_evals=2),
        adjoint=eq.Phantom(steps=30, damping=1.0),
        throw=True,
    )
    assert (sol.status == eq.Status.CONVERGED).all()


def test_phantom_traces_its_steps_and_keeps_what_is_finite() -> None:
    f = lambda z, x: torch.tanh(z @ A + x)  # noqa: E731
    sol = eq.fixed_point(f, start(), X, adjoint=eq.Phantom(steps=4), trace=True)
    assert sol.stats.trace is not None
    assert sol.stats.trace.shape == (int(sol.stats.evals.max()), B)
    assert torch.equal(sol.stats.trace[-1], sol.stats.residual)

    def breaks(z):
        return torch.where(z > 0.99, torch.nan, 0.5 * z + 0.5)

    z = torch.zeros(1, 1, dtype=torch.float64)
    solver, adjoint = eq.Picard(rtol=1e-9), eq.Phantom(steps=5, damping=1.0)
    sol = eq.fixed_point(breaks, z, solver=solver, adjoint=adjoint)
    assert sol.value.isfinite().all() and sol.status.item() == eq.Status.NONFINITE


@pytest.mark.parametrize("linear", [eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.Anderson])
def test_warm_adjoint_where_the_cotangent_is_zero(linear) -> None:
    f = lambda z, x: torch.tanh(z @ A + x)  # noqa: E731
    adjoint = eq.Implicit(linear=linear(rtol=1e-8))
    x = X.clone().requires_grad_()
    first = eq.fixed_point(f, start(), x, adjoint=adjoint)
    first.value.sum().backward()
    again = eq.fixed_point(f, start(), x, adjoint=adjoint, warm=first)
    again.value[:2].sum().backward()
    assert again.adjoint is not None
    assert (again.adjoint.status == eq.Status.CONVERGED).all()
    assert not again.adjoint.value[0][2].any()


def test_warm_of_another_structure_is_refused() -> None:
    sol = eq.fixed_point(lambda z: (0.5 * z[0],), (torch.ones(2, 3),))
    with pytest.raises(TypeError, match=r"tuple\(Tensor\)"):
        eq.fixed_point(lambda z: 0.5 * z, torch.ones(2, 3), warm=sol)


def test_states_are_finite_with_and_without_grad() -> None:
    def breaks(z, x):
        return torch.where(z > 0.99, torch.nan, 0.5 * z + x)

    x = torch.full((1, 1), 0.5, dtype=torch.float64, requires_grad=True)
    solver, z = eq.Picard(rtol=1e-9), torch.zeros(1, 1, dtype=torch.float64)
    tracked = eq.fixed_point(breaks, z, x, solver=solver, states=(7, 8)).states
    with torch.no_grad():
        plain = eq.fixed_point(breaks, z, x, solver=solver, states=(7, 8)).states
    assert all(
        torch.equal(s, t) and s.isfinite().all() for s, t in zip(tracked, plain, strict=True)
    )


def test_values_share_no_memory() -> None:
    x = X.clone()
    with torch.no_grad():
        sol = eq.fixed_point(lambda z, x: torch.tanh(z @ A + x), start(), x, states=(2, 50))
    before = [s.clone() for s in sol.states]
    sol.value.add_(1)
    assert all(torch.equal(s, t) for s, t in zip(sol.states, before, strict=True))
    z = torch.zeros(2, 3)
    sol = eq.fixed_point(lambda z: 0.5 * z, z)  # z0 is the solution
    sol.value.add_(1)
    assert not z.any()


@pytest.mark.parametrize("fails", [False, True])
def test_what_f_closes_over_is_freed_with_the_solution(fails: bool) -> None:
    weight = A.clone().requires_grad_()
    alive = weakref.ref(weight)

    def f(z, x, weight=weight):
        out = torch.tanh(z @ weight + x)
        return out[:, :1] if fails else out

    with pytest.raises(ValueError) if fails else nullcontext():
        eq.fixed_point(f, start(), X, adjoint=eq.Implicit()).value.sum().backward()
    del f, weight
    gc.collect()
    assert alive() is None


def test_the_first_evaluation_keeps_no_intermediate_alive() -> None:
    """Counted by weak references at the end of f: the recorder must hold identities only."""
    alive: list[int] = []

    def f(z, x):
        refs = []
        for _ in range(20):
            with torch.no_grad():
                refs.append(weakref.ref(torch.sin(x)))
        gc.collect()
        alive.append(sum(ref() is not None for ref in refs))
        return 0.5 * z + x

    eq.fixed_point(f, start(), X, solver=eq.Picard(max_evals=2))
    assert alive[0] == alive[-1] == 0


@pytest.mark.parametrize(
    "adjoint",
    [
        eq.Implicit(),
        eq.Shine(),
        eq.NeumannPhantom(),
        eq.JacobianFree(),
        eq.Phantom(),
        eq.AdaptiveAdjoint(),
    ],
    ids=lambda adjoint: type(adjoint).__name__,
)
def test_the_graph_of_the_first_evaluation_is_free_before_the_second(adjoint) -> None:
    """What autograd saves of an evaluation is counted where the next one begins."""

    class Saved:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor.detach()  # an output would hold the graph that saves it

    saved: weakref.WeakSet[Saved] = weakref.WeakSet()
    before: list[int] = []
    after: list[int] = []

    def pack(tensor: torch.Tensor) -> Saved:
        kept = Saved(tensor)
        saved.add(kept)
        return kept

    def f(z, x):
        before.append(len(saved))
        out = torch.tanh(z @ A + x)
        after.append(len(saved))
        return out

    x = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        sol = eq.fixed_point(f, start(), x, solver=eq.Broyden(rtol=1e-10), adjoint=adjoint)
    found = int(sol.stats.evals.max())
    assert found > 8
    if not isinstance(adjoint, eq.Phantom):  # which begins with the solve, without a graph
        assert after[0] > before[0] == 0
    steps = adjoint.steps + 1 if isinstance(adjoint, eq.Phantom) else 0
    assert not any(before[: found - steps])
    wanted = torch.autograd.grad(sol.value.sum(), x)[0]
    assert wanted.any()
