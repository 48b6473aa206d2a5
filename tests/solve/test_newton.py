"""NewtonKrylov: its rate, its counts, its own safeguards; everything that a graph can meet."""

import itertools
import warnings

import pytest
import torch
from maps import Module
from problems import normal, relative_residual, spread, with_norm, with_spectrum
from references import Clone, Counted, from_zero
from torch.utils.checkpoint import checkpoint

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status
KRYLOV = eq.GMRES(rtol=1e-6, restart=100)
W = with_norm(1.6, 12, seed=1)
X = normal(4, 12, seed=2)


def net(z, x, w=W):
    return torch.tanh(z @ w.T + x)


def dense(product_of: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(torch.eye(z.shape[1]).to(z) - product_of, z.T).T


def test_one_step_solves_a_linear_problem() -> None:
    """Two evaluations, one to linearise, and the products that the tolerance takes."""
    a = with_spectrum(spread(-3.0, 0.5, 6), seed=3)
    x = normal(3, 6, seed=4)
    solver = eq.NewtonKrylov(linear=eq.DirectSolve(), rtol=1e-10)
    sol = from_zero(lambda z, x: z @ a.T + x, x, solver=solver)
    assert (sol.status == CONVERGED).all()
    torch.testing.assert_close(sol.value, dense(a, x))
    assert sol.stats.evals.tolist() == [2 + 1 + 6] * 3  # DirectSolve: 6 columns


def test_converges_quadratically() -> None:
    """With exact steps the digits double: the last residuals are squares of those before."""
    solver = eq.NewtonKrylov(linear=eq.DirectSolve(), rtol=1e-13)
    sol = from_zero(net, X, solver=solver, trace=True)
    assert (sol.status == CONVERGED).all()
    for sample in sol.stats.trace.T:
        path = sample[~sample.isnan()]
        small = [(a, b) for a, b in itertools.pairwise(path.tolist()) if 1e-6 < a < 1e-1]
        assert small and all(b <= 30 * a**2 for a, b in small)


@pytest.mark.parametrize("rtol", [1e-3, 1e-6, 1e-10])
def test_steps_are_as_exact_as_they_need_be(rtol: float) -> None:
    """Forcing terms save products beside steps to full accuracy, and the answer is as good."""
    spent = []
    for linear in (eq.GMRES(rtol=1e-6, max_evals=100, restart=100), eq.DirectSolve()):
        solver = eq.NewtonKrylov(rtol=rtol, linear=linear)
        sol = from_zero(net, X, solver=solver)
        assert (sol.status == CONVERGED).all()
        assert (relative_residual(net, sol.value, X) <= rtol * 1.001).all()
        spent.append(sol.stats.evals)
    assert (spent[0] < spent[1]).all()


def test_counts_are_evaluations_and_products() -> None:
    """One sample: calls of f are those of the loop and one to linearise, the rest are products."""
    f = Counted(net)
    sol = eq.fixed_point(
        f, torch.zeros(1, 12).double(), X[:1], solver=eq.NewtonKrylov(), trace=True
    )
    loops = len(sol.stats.trace)
    assert f.calls == loops + 1 < int(sol.stats.evals)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 9, 17])
def test_the_budget_holds(budget: int) -> None:
    """Products included; and the answer is never worse than the start."""
    solver = eq.NewtonKrylov(max_evals=budget, rtol=1e-14)
    sol = from_zero(net, X, solver=solver)
    assert (sol.status == MAX_EVALS).all() and (sol.stats.evals == budget).all()
    assert (relative_residual(net, sol.value, X) <= relative_residual(net, 0 * X, X)).all()


def test_a_step_too_long_is_shortened() -> None:
    """arctan from afar: the full step of Newton's method diverges."""
    z0 = torch.tensor([[2.0], [10.0], [0.5]], dtype=torch.float64)
    sol = eq.fixed_point(
        lambda z: z - torch.atan(z), z0, solver=eq.NewtonKrylov(rtol=0.0, atol=1e-8)
    )
    assert (sol.status == CONVERGED).all()
    assert sol.value.abs().max() <= 1e-7


@pytest.mark.parametrize(
    "solver", [eq.NewtonKrylov(rtol=1e-8), eq.Auto(rtol=1e-8, newton=KRYLOV)], ids=repr
)
def test_bad_values_stay_alone(solver) -> None:
    """NaN from one call of f in one sample, linearising included: the others never know, but for
    rounding where `Auto` takes their products together with those of other evaluations."""

    # A steeper one has many roots, and rounding decides which of them acceleration finds.
    steep = 1.5 if isinstance(solver, eq.Auto) else 3

    def run(when: int):
        calls = itertools.count(1)

        def f(z):
            value = steep * torch.sin(z) + X
            if next(calls) == when:
                value = value.clone()
                value[1, 3] = torch.nan
            return value

        return eq.fixed_point(f, torch.zeros_like(X), solver=solver)

    with torch.no_grad():
        healthy, *spoilt = [run(call) for call in (0, *range(2, 7))]
    for hurt in spoilt:
        assert hurt.value.isfinite().all()
        for i in (0, 2, 3):
            apart = (hurt.value[i] - healthy.value[i]).abs().max()
            assert apart <= (1e-12 if isinstance(solver, eq.Auto) else 0)
            assert hurt.status[i] == healthy.status[i]
            assert hurt.stats.evals[i] == healthy.stats.evals[i]


# Everything that a graph can meet.


def test_modules_train_and_evaluate() -> None:
    """Parameters, under grad, no_grad and inference mode; checkpoints inside f."""
    torch.manual_seed(0)
    cell = Module()
    x = normal(2, 3, seed=3)
    layer = eq.DEQ(cell, solver=eq.NewtonKrylov(rtol=1e-10))
    wanted = eq.DEQ(cell, solver=eq.Anderson(rtol=1e-12))(x).value
    with torch.no_grad():
        torch.testing.assert_close(layer(x).value, wanted, rtol=1e-8, atol=1e-9)
    with torch.inference_mode():
        inside = layer(normal(2, 3, seed=3))
        assert (inside.status == CONVERGED).all()
        torch.testing.assert_close(inside.value, wanted, rtol=1e-8, atol=1e-9)
    sol = layer(x)
    sol.value.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in cell.parameters())

    def saving(z, x):
        return checkpoint(cell, z, x, use_reentrant=False)

    sol = from_zero(saving, x, solver=eq.NewtonKrylov(rtol=1e-10))
    torch.testing.assert_close(sol.value, wanted, rtol=1e-8, atol=1e-9)


def test_autocast() -> None:
    """f in bfloat16, the steps in float32: down to the floor of the former."""
    x, w = X.float(), W.float()
    with torch.autocast("cpu", torch.bfloat16):
        sol = from_zero(
            lambda z, x: torch.tanh(torch.nn.functional.linear(z, w) + x),
            x,
            solver=eq.NewtonKrylov(rtol=2e-2),
        )
    assert sol.value.dtype == torch.float32 and (sol.status == CONVERGED).all()


def test_transforms() -> None:
    """vmap folds the axis into the batch; grad of it is the gradient of each."""

    def value(x, w):
        solver = eq.NewtonKrylov(rtol=1e-11)
        linear = eq.GMRES(rtol=1e-11)
        zeros = torch.zeros(4, 12, dtype=torch.float64)
        adjoint = eq.Implicit(linear=linear)
        return eq.fixed_point(
            lambda z, x: net(z, x, w), zeros, x, solver=solver, adjoint=adjoint
        ).value

    many = torch.stack([X, -X, 0.5 * X])
    weights = torch.stack([W, 0.5 * W, -0.3 * W])
    got = torch.vmap(value)(many, weights)
    wanted = torch.stack([value(x, w) for x, w in zip(many, weights, strict=True)])
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)
    total = lambda x, w: value(x, w).sum()  # noqa: E731
    got = torch.vmap(torch.func.grad(total))(many, weights)
    wanted = torch.stack(
        [torch.func.grad(total)(*pair) for pair in zip(many, weights, strict=True)]
    )
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("grads", [True, False])
def test_unrolled_refuses(grads: bool) -> None:
    with torch.set_grad_enabled(grads), pytest.raises(TypeError, match=r"eq\.Implicit\(\)"):
        from_zero(net, X, solver=eq.NewtonKrylov(), adjoint=eq.Unrolled())


@pytest.mark.parametrize(("solver", "field"), [(eq.NewtonKrylov, "linear"), (eq.Auto, "newton")])
def test_linear_is_a_linear_solver(solver, field) -> None:
    with pytest.raises(TypeError, match=rf"{field}=.*eq\.GMRES\(\)"):
        solver(**{field: eq.Anderson()})


def test_a_map_that_is_flat_to_autograd() -> None:
    """J is zero everywhere it exists: the steps are plain ones, and the outcome is told."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sol = eq.fixed_point(lambda z: torch.round(z / 3), 9 + 0 * X, solver=eq.NewtonKrylov())
    assert (sol.status == CONVERGED).all() and sol.value.abs().max() == 0


class Once(torch.autograd.Function):
    """tanh, whose derivative has none."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y**2)


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_can_be_differentiated_once_only(dtype: torch.dtype, drop_finished: bool) -> None:
    """Products are differences: the steps a little worse, the answer as good."""
    x = X.to(dtype)
    x = torch.cat([0 * x[:1], x, 0 * x[:1]])  # two samples leave at once
    w = W.to(dtype)
    rtol = 1e-5 if dtype == torch.float32 else 1e-10
    for solver in (eq.NewtonKrylov(rtol=rtol), eq.Auto(rtol=rtol, newton=KRYLOV)):
        sol = from_zero(
            lambda z, x: Once.apply(3 * z @ w.T + x), x, solver=solver, drop_finished=drop_finished
        )
        done = sol.status == CONVERGED
        assert done[[0, -1]].all() and done.sum() >= 4
        residual = relative_residual(lambda z: torch.tanh(3 * z @ w.T + x), sol.value)
        assert (residual[done] <= 1.01 * rtol + 8 * torch.finfo(dtype).eps).all()


class Fault(Clone):
    """Whose derivative has a fault."""

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("a fault of f's own")


def test_a_fault_in_a_derivative_is_no_lack_of_one() -> None:
    with pytest.raises(RuntimeError, match="a fault of f's own"):
        eq.fixed_point(lambda z: net(Fault.apply(z), X), 0 * X, solver=eq.NewtonKrylov())

    def outer(z, x):  # whose inner solve fails in backward, and says so
        short = eq.Implicit(linear=eq.GMRES(rtol=1e-14, max_evals=2))
        inner = eq.fixed_point(lambda y, z: 0.3 * net(y, z), 0 * z, z, throw=True, adjoint=short)
        return torch.tanh(inner.value + x)

    with pytest.raises(eq.SolveError):
        eq.fixed_point(outer, 0 * X, X, solver=eq.NewtonKrylov())


def test_fused_attention() -> None:
    """Has no second derivative on any device."""
    q = normal(3, 2, 5, 8, seed=20).float()

    def f(z, q):
        return (
            0.5 * torch.nn.functional.scaled_dot_product_attention(q + 3 * z, z + q, q - 2 * z) + q
        )

    sol = from_zero(f, q, solver=eq.NewtonKrylov(rtol=1e-4))
    assert (sol.status == CONVERGED).all()
