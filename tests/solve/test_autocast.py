"""Mixed precision: f alone runs in bfloat16, and the adjoint sees the f that the forward saw."""

import warnings

import pytest
import torch
from problems import normal, with_norm
from references import INEXACT, from_zero
from torch import nn

import equilibria as eq

B, D = 4, 8
TANH_W = with_norm(0.7, D, seed=1).float()


def autocast(enabled: bool = True, dtype: torch.dtype = torch.bfloat16):
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


def inputs():
    """z0 and an operand that requires a gradient, float32."""
    return torch.zeros(B, D), normal(B, D, seed=2).float().requires_grad_()


def test_state_and_solver_stay_in_float32() -> None:
    """f sees float32 iterates; its bfloat16 value is taken up in float32."""
    seen, made = set(), set()

    def f(z, x):
        out = torch.tanh(nn.functional.linear(z, TANH_W) + x.to(torch.bfloat16))
        seen.add(z.dtype)
        made.add(out.dtype)
        return out

    z0, x = inputs()
    for solver in (eq.Picard(), eq.Anderson(), eq.Broyden()):
        with autocast():
            sol = eq.fixed_point(f, z0, x, solver=solver)
            assert sol.value.dtype == torch.float32
            assert sol.stats.residual.dtype == torch.float32
        sol.value.sum().backward()
        assert x.grad is not None and x.grad.dtype == torch.float32
    assert seen == {torch.float32} and made == {torch.bfloat16}


@pytest.mark.parametrize("solver", [eq.Anderson, eq.Broyden])
def test_solver_arithmetic_is_not_autocast(solver) -> None:
    """An f that autocast cannot touch gives the same solve, bit for bit, in and out of it."""
    z0, x = inputs()
    f = lambda z, x: 0.9 * torch.sin(z) + x  # noqa: E731

    def solve():
        sol = eq.fixed_point(f, z0, x, solver=solver(rtol=1e-6))
        return sol, torch.autograd.grad(sol.value.sum(), x)[0]

    plain, plain_grad = solve()
    with autocast():
        cast, cast_grad = solve()
    assert torch.equal(plain.value, cast.value)
    assert torch.equal(plain.stats.evals, cast.stats.evals)
    assert torch.equal(plain_grad, cast_grad)


def test_the_adjoint_sees_the_function_that_the_forward_saw() -> None:
    """f is another function under autocast. Its gradient is wanted, wherever backward is called."""

    def f(z, x):
        # bfloat16 has 8 bits: the product tells where it was computed.
        in_autocast = nn.functional.linear(z, TANH_W).dtype == torch.bfloat16
        return (0.5 if in_autocast else -0.5) * torch.sin(z) + x

    def gradient(forward: bool, backward: bool):
        z0, x = inputs()
        solver, adjoint = eq.Anderson(rtol=1e-6), eq.Implicit(linear=eq.GMRES(rtol=1e-6))
        with autocast(forward):
            sol = eq.fixed_point(f, z0, x, solver=solver, adjoint=adjoint)
        with autocast(backward):
            sol.value.sum().backward()
        # z* = s sin z* + x: dz*/dx = 1 / (1 - s cos z*).
        slope = 0.5 if forward else -0.5
        return x.grad, 1 / (1 - slope * torch.cos(sol.value.detach()))

    for forward in (True, False):
        for backward in (True, False):
            got, wanted = gradient(forward, backward)
            torch.testing.assert_close(got, wanted, rtol=2e-2 if forward else 1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gain", [0.4, 0.9, 1.5])
def test_defaults_stop_at_what_can_be_reached(gain: float, dtype: torch.dtype) -> None:
    """Half of the epsilon of what f computes in, forward and backward."""
    torch.manual_seed(0)
    linear = nn.Linear(64, 64)
    linear.weight.data.mul_(gain)
    x = normal(32, 64, seed=4).float()
    with autocast(dtype=dtype), warnings.catch_warnings():
        warnings.simplefilter("error", eq.SolveWarning)
        sol = eq.DEQ(lambda z, x: torch.tanh(linear(z) + x))(x)
        sol.value.square().sum().backward()
    assert sol.adjoint is not None
    for status, stats in ((sol.status, sol.stats), (sol.adjoint.status, sol.adjoint.stats)):
        assert (status == eq.Status.CONVERGED).all()
        assert (stats.residual <= 0.5 * torch.finfo(dtype).eps).all()
        assert float(stats.evals.float().mean()) < 16


@pytest.mark.parametrize("linear", [eq.Anderson(), eq.GMRES(), eq.Fallback()], ids=repr)
def test_second_derivatives_stop_at_what_can_be_reached(linear) -> None:
    torch.manual_seed(0)
    cell = nn.Linear(64, 64)
    cell.weight.data.mul_(0.9)
    x = normal(32, 64, seed=4).float().requires_grad_()
    with autocast(), warnings.catch_warnings():
        warnings.simplefilter("error", eq.SolveWarning)
        f = lambda z, x: torch.tanh(cell(z) + x)  # noqa: E731
        sol = from_zero(f, x, adjoint=eq.Implicit(linear=linear))
        (first,) = torch.autograd.grad(sol.value.square().sum(), x, create_graph=True)
        first.square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("track", [False, True])
def test_a_map_that_computes_in_float32_keeps_its_tolerance(track: bool) -> None:
    def f(z, x):
        with torch.autocast("cpu", enabled=False):
            return torch.tanh(nn.functional.linear(z, TANH_W)) + x

    z0, x = inputs()
    with autocast(), torch.set_grad_enabled(track):
        sol = eq.fixed_point(f, z0, x)
    assert (sol.stats.residual <= 1e-4).all()


def test_a_tolerance_of_zero_stays_one() -> None:
    z0, x = inputs()
    with autocast(), torch.no_grad():
        sol = eq.fixed_point(
            lambda z, x: torch.tanh(nn.functional.linear(z, TANH_W) + x),
            z0,
            x,
            solver=eq.Picard(rtol=0.0, patience=None, max_evals=7),
        )
    assert ((sol.stats.evals == 7) | (sol.stats.residual == 0)).all()
    assert (sol.status != eq.Status.CONVERGED)[sol.stats.residual > 0].all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("adjoint", [eq.Implicit(), *INEXACT], ids=repr)
def test_every_adjoint_sees_the_function_of_the_forward(adjoint, dtype: torch.dtype) -> None:
    seen = []

    def f(z, x):
        seen.append(nn.functional.linear(z, TANH_W).dtype)
        return 0.5 * torch.sin(z) + x

    z0, x = inputs()
    with autocast(dtype=dtype):
        sol = eq.fixed_point(f, z0, x, adjoint=adjoint)
    forward = len(seen)
    sol.value.sum().backward()
    again = isinstance(adjoint, eq.Implicit | eq.JacobianFree | eq.NeumannPhantom)
    assert len(seen) > forward or not again
    assert set(seen) == {dtype}


def layer() -> nn.Linear:
    torch.manual_seed(0)
    linear = nn.Linear(D, D)
    with torch.no_grad():
        linear.weight.copy_(TANH_W)
    return linear


def reference_gradient(linear: nn.Linear, z: torch.Tensor, x: torch.Tensor, g: torch.Tensor):
    """The gradient for the parameters, from a dense J of the f that autocast computes.

    Each row of J is a vector-Jacobian product through the graph made under autocast; the linear
    system is solved in float64.
    """
    grads = [torch.zeros_like(p) for p in linear.parameters()]
    for i in range(B):
        point = z[i : i + 1].detach().requires_grad_()
        with autocast():
            out = torch.tanh(linear(point) + x[i : i + 1]).float()
        rows = [
            torch.autograd.grad(out, point, e[None], retain_graph=True)[0][0] for e in torch.eye(D)
        ]
        jacobian = torch.stack(rows).double()
        u = torch.linalg.solve(torch.eye(D).double() - jacobian.T, g[i].double()).float()
        for total, part in zip(
            grads, torch.autograd.grad(out, list(linear.parameters()), u[None]), strict=True
        ):
            total += part
    return grads


def test_gradient_equals_the_reference_in_the_same_autocast() -> None:
    """To bfloat16's rounding, 2^-8, which the products with J^T have too."""
    linear = layer()
    z0, x = inputs()
    with autocast():
        sol = eq.fixed_point(lambda z, x: torch.tanh(linear(z) + x), z0, x)
    g = normal(B, D, seed=4).float()
    got = torch.autograd.grad(sol.value, list(linear.parameters()), g)
    wanted = reference_gradient(linear, sol.value, x.detach(), g)
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).norm() <= 2e-2 * b.norm()


def parameter_gradients(linear: nn.Linear, value: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(value, list(linear.parameters())))


def solve(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return eq.fixed_point(lambda z, x: torch.tanh(linear(z) + x), torch.zeros(B, D), x).value.sum()


@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")  # bfloat16's floor
def test_two_calls_in_one_region() -> None:
    """Autocast caches its copy of a weight for a region, graph and all; each call needs its own."""
    linear = layer()
    x, y = normal(B, D, seed=2).float(), normal(B, D, seed=3).float()
    with autocast():
        both = parameter_gradients(linear, solve(linear, x) + solve(linear, y))
    singles = []
    for operand in (x, y):
        with autocast():
            value = solve(linear, operand)
        singles.append(parameter_gradients(linear, value))
    for a, b, c in zip(both, *singles, strict=True):
        torch.testing.assert_close(a, b + c, rtol=1e-2, atol=1e-2)
        assert b.abs().max() > 0.1


@pytest.mark.parametrize("order", ["before", "after", "both"])
def test_weights_used_outside_too(order: str) -> None:
    """A layer's weight is used by plain code in the same region, before or after the solve."""
    linear = layer()
    x = normal(B, D, seed=2).float()

    def outside() -> torch.Tensor:
        return linear(x).float().sum()

    with autocast():
        parts = [outside()] if order in ("before", "both") else []
        parts.append(solve(linear, x))
        parts += [outside()] if order in ("after", "both") else []
        total = torch.stack(parts).sum()
    got = parameter_gradients(linear, total)

    with autocast():
        value = solve(linear, x)
    wanted = parameter_gradients(linear, value)
    times = 2 if order == "both" else 1
    with autocast():
        plain = outside()
    for a, b, c in zip(got, wanted, parameter_gradients(linear, plain), strict=True):
        assert c.abs().max() > 0.1
        torch.testing.assert_close(a, b + times * c, rtol=1e-2, atol=1e-2)


def test_solve_without_gradient_leaves_the_weights_usable() -> None:
    """A solve under no_grad must not leave a weight in autocast's cache that has no graph."""
    linear = layer()
    x = normal(B, D, seed=2).float()
    with autocast():
        with torch.no_grad():
            solve(linear, x)
        linear(x).float().sum().backward()
    assert linear.weight.grad is not None and linear.weight.grad.abs().max() > 0.1


def test_second_derivative_under_autocast() -> None:
    """An f that autocast leaves in float32 keeps its second derivative."""
    z0, x = inputs()

    def second(enabled: bool) -> torch.Tensor:
        with autocast(enabled):
            sol = eq.fixed_point(
                lambda z, x: 0.5 * torch.sin(z) + x,
                z0,
                x,
                solver=eq.Anderson(rtol=1e-7),
                adjoint=eq.Implicit(linear=eq.DirectSolve(rtol=1e-5)),
            )
        (first,) = torch.autograd.grad((sol.value**2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    torch.testing.assert_close(second(True), second(False))
