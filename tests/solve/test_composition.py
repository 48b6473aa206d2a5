"""Fixed points next to each other, inside each other, and beside the rest of autograd."""

import gc
import weakref

import pytest
import torch
from maps import BATCH, WIDTH, cell, start
from problems import normal, with_norm
from references import TIGHT, Clone, Counted, gradients, iterate, loss, tight
from torch import nn
from torch.utils.checkpoint import checkpoint

import equilibria as eq

X, Y = normal(BATCH, WIDTH, seed=1), normal(BATCH, WIDTH, seed=2)


def parameters():
    """v and b; the weight w = sin v has a history."""
    v = with_norm(0.7, WIDTH, seed=3).requires_grad_()
    b = normal(WIDTH, seed=4).requires_grad_()
    return v, b


def same(got, wanted) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)


def two_ways(function, steps: int = 60) -> None:
    """First and second derivatives of function(solve, v, b), solved and unrolled."""

    def solve(f, z0, *operands):
        return eq.fixed_point(f, z0, *operands, **tight()).value

    same(derivatives(function, solve), derivatives(function, loop(steps)))


def loop(steps: int = 60):
    """Plain iteration, called as a solve is."""

    def unroll(f, z0, *operands):
        plain = [x.value if isinstance(x, eq.solve.Shared) else x for x in operands]
        return iterate(f, z0, *plain, steps=steps)

    return unroll


def derivatives(function, solve) -> tuple[torch.Tensor, ...]:
    v, b = parameters()
    first = torch.autograd.grad(function(solve, v, b), (v, b), create_graph=True)
    return (*first, *gradients(first, (v, b)))


@pytest.mark.parametrize("fed", [False, True])
def test_one_function_solved_twice_before_backward(fed: bool) -> None:
    """Beside each other, or one solution fed to the next solve."""

    def function(solve, v, b):
        w = torch.sin(v)
        f = lambda z, x: cell(z, x, w, b)  # noqa: E731
        one = solve(f, start(), X)
        two = solve(f, start(), one if fed else Y)
        return loss(two) if fed else (one * two).sum() + loss(one)

    two_ways(function)


@pytest.mark.parametrize("closed", [False, True])
def test_fixed_point_inside_a_fixed_point(closed: bool) -> None:
    """Both close over one tensor with a history; the outer iterate reaches the inner f as an
    operand, or closed over."""

    def function(solve, v, b):
        w = torch.sin(v)

        def outer(z, x):
            shifted = z + torch.cos(z)
            if closed:
                inner = solve(lambda y: 0.4 * torch.tanh(y @ w.T + shifted), start())
            else:
                inner = solve(lambda y, z: 0.4 * torch.tanh(y @ w.T + z), start(), z)
            return cell(0.5 * inner, x, w, b)

        return loss(solve(outer, start(), X))

    two_ways(function, steps=24)


def autograd_slope(energy, z, x):
    with torch.enable_grad():
        if not z.requires_grad:
            z = z.requires_grad_()
        return torch.autograd.grad(energy(z, x), z, create_graph=True)[0]


def func_slope(energy, z, x):
    return torch.func.grad(energy)(z, x)


@pytest.mark.parametrize("slope", [autograd_slope, func_slope])
def test_gradient_inside_f(slope) -> None:
    """f is itself a gradient step: z - step dE/dz, as in an energy model."""

    def function(solve, v, b):
        w = torch.sin(v)

        def energy(z, x):
            return 0.5 * (z**2).sum() + 0.3 * torch.log(torch.cosh(z @ w + b * x)).sum()

        return loss(solve(lambda z, x: z - 0.7 * slope(energy, z, x), start(), X))

    two_ways(function)


def test_backward_twice_with_the_graph_retained() -> None:
    v, b = parameters()
    w = torch.sin(v)
    sol = eq.fixed_point(lambda z: cell(z, X, w, b), start(), **tight())
    once = torch.autograd.grad(loss(sol.value), (v, b), retain_graph=True)
    again = torch.autograd.grad(loss(sol.value), (v, b))
    same(once, again)


def test_gradients_accumulate_over_calls() -> None:
    linear = linear_layer()
    f = lambda z, x: torch.tanh(linear(z) + x)  # noqa: E731
    for x in (X, Y):
        loss(eq.fixed_point(f, start(), x, **tight()).value).backward()
    got = [p.grad.clone() for p in linear.parameters()]
    linear.zero_grad()
    for x in (X, Y):
        loss(iterate(f, start(), x, steps=60)).backward()
    same(got, [p.grad for p in linear.parameters()])


def test_parameter_changed_between_forward_and_backward() -> None:
    """The adjoint would be that of another function: an error, as autograd's own is."""
    linear = nn.Linear(WIDTH, WIDTH).double()
    operand = X.clone().requires_grad_()
    sol = eq.fixed_point(lambda z, x: 0.3 * torch.tanh(linear(z) + x), start(), operand)
    with torch.no_grad():
        linear.weight.add_(0.1)
    with pytest.raises(RuntimeError, match=r"modified|changed"):
        sol.value.sum().backward()


def test_closed_over_constant_changed_between_forward_and_backward() -> None:
    """A tensor without gradient decides J as well: its change must not pass in silence."""
    linear = nn.Linear(WIDTH, WIDTH).double().requires_grad_(False)
    operand = X.clone().requires_grad_()
    weight = linear.weight
    sol = eq.fixed_point(
        lambda z, x, w: 0.3 * torch.tanh(z @ w.T + x), start(), operand, eq.shared(weight)
    )
    weight.add_(0.1)
    with pytest.raises(RuntimeError, match=r"modified|changed"):
        sol.value.sum().backward()


def test_optimiser_step_after_backward_is_no_change() -> None:
    linear = nn.Linear(WIDTH, WIDTH).double()
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        sol = eq.fixed_point(lambda z, x: 0.3 * torch.tanh(linear(z) + x), start(), X)
        loss(sol.value).backward()
        optimizer.step()
    assert all(p.grad.abs().max() > 0 for p in linear.parameters())


def linear_layer() -> nn.Linear:
    linear = nn.Linear(WIDTH, WIDTH).double()
    with torch.no_grad():
        linear.weight.copy_(with_norm(0.6, WIDTH, seed=3))
    return linear


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        torch.jit.script,
        lambda module: torch.compile(module, backend="eager"),
        lambda module: torch.compile(module, backend="aot_eager"),
    ],
    ids=["scripted", "eager", "aot_eager"],
)
def test_translated_module_with_leaf_parameters(make) -> None:
    linear = linear_layer()
    translated = make(linear)
    operand = X.clone().requires_grad_()
    inputs = (operand, *linear.parameters())
    f = lambda z, x: torch.tanh(translated(z) + x)  # noqa: E731
    got = gradients(eq.fixed_point(f, start(), operand, **tight()).value, inputs)
    g = lambda z, x: torch.tanh(linear(z) + x)  # noqa: E731
    same(got, gradients(iterate(g, start(), operand, steps=60), inputs))


def test_hooks_on_a_parameter_run_once() -> None:
    v, b = parameters()
    calls = []
    v.register_hook(lambda grad: calls.append(grad.clone()))
    w = torch.sin(v)
    w.register_hook(lambda grad: calls.append(grad.clone()))
    sol = eq.fixed_point(lambda z: cell(z, X, w, b), start(), **tight())
    loss(sol.value).backward()
    assert len(calls) == 2
    same(calls[1], v.grad)


def test_hook_on_a_leaf_that_f_uses_directly_runs_once() -> None:
    """And what it returns replaces the gradient, once."""
    w = with_norm(0.6, WIDTH, seed=3).requires_grad_()
    plain = gradients(
        eq.fixed_point(lambda z: torch.tanh(z @ w.T + X), start(), **tight()).value, [w]
    )
    calls = []
    w.register_hook(lambda grad: calls.append(1) or 2 * grad)
    loss(eq.fixed_point(lambda z: torch.tanh(z @ w.T + X), start(), **tight()).value).backward()
    assert calls == [1]
    same(w.grad, 2 * plain[0])


def test_module_hooks_run_at_every_evaluation_of_the_forward() -> None:
    linear = nn.Linear(WIDTH, WIDTH).double()
    calls = []
    linear.register_forward_hook(lambda *_: calls.append(1))
    sol = eq.fixed_point(lambda z: 0.3 * torch.tanh(linear(z)) + 1, start())
    assert len(calls) == sol.stats.evals.max()


def test_history_outside_is_walked_once() -> None:
    """The graph behind a closed-over tensor is gone through once, however f uses the tensor."""
    v, b = parameters()

    class Count(Clone):
        passes = 0

        @staticmethod
        def backward(ctx, grad):
            Count.passes += 1
            return grad

    w = Count.apply(torch.sin(v))
    sol = eq.fixed_point(lambda z: cell(z, X, w, w[0] + b), start(), **tight())
    loss(sol.value).backward()
    assert Count.passes == 1


def test_custom_function_inside_f() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            ctx.save_for_backward(value)
            return value**3

        @staticmethod
        def backward(ctx, grad):
            (value,) = ctx.saved_tensors
            return 3 * value**2 * grad

    def function(solve, v, b):
        w = torch.sin(v)
        return loss(
            solve(lambda z, x: 0.5 * torch.tanh(Cube.apply(0.5 * z) @ w.T + x) + b, start(), X)
        )

    two_ways(function)


def test_dropped_solution_runs_no_backward() -> None:
    """Two solves, one of them unused: only the other one is differentiated."""
    v, b = parameters()
    w = torch.sin(v)
    counted = Counted(lambda z: cell(z, X, w, b))
    eq.fixed_point(counted, start(), **tight())
    used = eq.fixed_point(lambda z: cell(z, Y, w, b), start(), **tight())
    before = counted.calls
    loss(used.value).backward()
    assert counted.calls == before


def test_detached_value_gives_a_plain_tensor() -> None:
    v, b = parameters()
    sol = eq.fixed_point(lambda z: cell(z, X, v, b), start(), **tight())
    (got,) = torch.autograd.grad((sol.value.detach() * v[0]).sum(), v)
    assert torch.equal(got[0], sol.value.detach().sum(0)) and not got[1:].any()


def test_randomness_in_the_initial_point_changes_nothing() -> None:
    """The adjoint's evaluation leaves the random number generator where it was found."""
    operand = X.clone().requires_grad_()
    sol = eq.fixed_point(
        lambda z, x: 0.3 * torch.sin(z) + x, torch.randn(BATCH, WIDTH).double(), operand
    )
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    sol.value.sum().backward()
    assert torch.equal(torch.rand(3), wanted)


def test_options_of_linear_solver_reach_the_second_backward() -> None:
    """A second derivative is solved as tightly as the first: u is a fixed point of its own."""

    def function(solve, v, b):
        w = torch.sin(v)
        return loss(solve(lambda z: cell(z, X, w, b), start()))

    def second(solve) -> torch.Tensor:
        return torch.cat([g.flatten() for g in derivatives(function, solve)[2:]])

    wanted, errors = second(loop()), []
    for rtol in (1e-2, 1e-12):
        options = tight(linear=eq.Neumann(**{**TIGHT, "rtol": rtol})) | {"throw": False}
        found = second(lambda f, z0: eq.fixed_point(f, z0, **options).value)  # noqa: B023
        errors.append(float((found - wanted).norm() / wanted.norm()))
    assert errors[1] < 1e-8 < errors[0] < 0.3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_closure_with_history(backend: str) -> None:
    """It works or asks for an operand; it never loses a gradient."""
    v, b = parameters()
    w = torch.sin(v)
    f = torch.compile(lambda z, x: cell(z, x, w, b), backend=backend)
    try:
        value = eq.fixed_point(f, start(), X, **tight()).value
        got = gradients(value, (v, b))
    except RuntimeError as error:
        assert "operand" in str(error)
        return
    fresh = torch.sin(v)  # the graph of w is spent
    same(got, gradients(iterate(lambda z, x: cell(z, x, fresh, b), start(), X, steps=60), (v, b)))


def test_checkpoint_inside_f() -> None:
    """Activation checkpointing of the cell, its weights as operands: to second order."""

    def function(solve, v, b):
        def f(z, x, w, b):
            return checkpoint(cell, z, x, w, b, use_reentrant=False)

        return loss(solve(f, start(), X, eq.shared(torch.sin(v)), eq.shared(b)))

    two_ways(function)


def test_checkpoint_inside_f_with_closed_over_tensors() -> None:
    """First derivatives; torch's checkpoint cannot recompute with stand-ins for second ones."""
    grads = []
    for solve in (lambda f, *x: eq.fixed_point(f, *x, **tight()).value, loop()):
        v, b = parameters()
        w = torch.sin(v)
        f = lambda z, x, w=w, b=b: checkpoint(cell, z, x, w, b, use_reentrant=False)  # noqa: E731
        grads.append(gradients(solve(f, start(), X), (v, b)))
    same(*grads)


def test_integer_and_boolean_operands() -> None:
    """Operands without a gradient: an index into an embedding, and a mask."""
    index, mask = torch.tensor([2, 0]), torch.tensor([True, False])
    table = normal(4, WIDTH, seed=6).requires_grad_()

    def f(z, i, m):
        return 0.5 * torch.sin(z) + table[i] * m[:, None]

    got = gradients(eq.fixed_point(f, start(), index, mask, **tight()).value, [table])
    wanted = gradients(iterate(f, start(), index, mask, steps=60), [table])
    same(got, wanted)
    assert got[0][2].any() and not got[0][0].any()


def test_one_tensor_as_several_operands_and_as_the_start() -> None:
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(lambda z, a, b: 0.5 * z + a + 2 * b, x, x, x, **tight())
    same(torch.autograd.grad(sol.value.sum(), x)[0], torch.full_like(X, 6.0))


def test_hook_on_the_value_runs_once() -> None:
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(lambda z, x: 0.5 * z + x, start(), x, **tight())
    sol.value.register_hook(lambda grad: 3 * grad)
    sol.value.sum().backward()
    same(x.grad, torch.full_like(X, 6.0))


@pytest.mark.parametrize("backward", [True, False])
def test_nothing_is_left_behind(backward: bool) -> None:
    """No reference cycle: memory is free when the solution goes, not when the collector comes."""
    gc.disable()
    try:
        v, b = parameters()
        w = torch.sin(v)
        sol = eq.fixed_point(lambda z: cell(z, X, w, b), start())
        if backward:
            loss(sol.value).backward()
        gone = [weakref.ref(sol), weakref.ref(sol.value)]
        del sol
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()
