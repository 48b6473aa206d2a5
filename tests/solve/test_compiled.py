"""f compiled, in one thread and in many; f and the solvers' steps without a graph break."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from maps import Gated
from problems import normal
from references import from_zero
from torch import nn

import equilibria as eq
from equilibria.solve import private
from equilibria.solve.rows import length
from equilibria.solve.solvers import Point

WEIGHT = 0.1 * normal(8, 8, seed=5).float()
X = normal(6, 8, seed=6).float()


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def f(z, x):
    return torch.tanh(z @ WEIGHT + x)


@pytest.mark.parametrize(
    "solver", [eq.Picard(damping=0.5), eq.Anderson(), eq.Anderson(period=3), eq.Broyden()], ids=repr
)
@torch.no_grad()
def test_evaluation_and_step_are_one_graph(solver) -> None:
    """Tracing alone is tested: the backend runs the graph as it is."""
    stepper = solver.start(False, None)

    def step(z):
        image = [f(z[0], X)]
        residual = stepper.residual(image, z)
        return stepper.step(Point(z, image, residual, length(residual)))

    z = [torch.zeros_like(X)]
    for _ in range(24):
        z = step(z)
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    for _ in range(2):
        z = compiled(z)
    wanted = from_zero(f, X, solver=eq.Picard(rtol=1e-6)).value
    torch.testing.assert_close(z[0], wanted, rtol=1e-3, atol=1e-4)


class Later(nn.Module):
    """A cell that uses its parameter away from zero only."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.3))

    def forward(self, z, x):
        return self.gain * torch.sin(z) + x if bool(z.any()) else x.clone()


def test_what_was_frozen_in_the_forward_is_a_constant_of_compiled_code_too() -> None:
    """Thawed before the backward; the first evaluation has not shown it."""
    found = []
    for compiled in (False, True):
        cell, x = Later().requires_grad_(False), X.clone().requires_grad_()
        g = torch.compile(cell, backend="eager") if compiled else cell
        value = eq.fixed_point(g, torch.zeros_like(X), x, solver=eq.Anderson(rtol=1e-6)).value
        cell.requires_grad_(True)
        value.sum().backward()
        assert cell.gain.grad is None
        found.append(x.grad)
    torch.testing.assert_close(*found)


class Inside(nn.Module):
    """A cell with a compiled module and a compiled function inside."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.cell = Gated()
        self.first = torch.compile(self.cell, backend=backend)
        self.then = torch.compile(lambda z: 0.9 * z.sin(), backend=backend, fullgraph=True)

    def forward(self, z, x):
        return self.then(self.first(z, x))


def wrapped(backend):
    return torch.compile(Gated(), backend=backend)


def in_place(backend):
    cell = Gated()
    cell.compile(backend=backend)
    return cell


def derivatives(layer, *, second: bool):
    x = X.clone().requires_grad_()
    parameters = [x, *layer.parameters()]
    value = layer(x).value
    found = torch.autograd.grad(value.square().sum(), parameters, create_graph=second)
    if second:
        found += torch.autograd.grad(sum(g.square().sum() for g in found), parameters)
    return [value.detach(), *found]


def uncompiled(layer, *, second: bool):
    with torch.compiler.set_stance("force_eager"):
        return derivatives(layer, second=second)


def assert_same(found, wanted) -> None:
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


on_2_6 = pytest.mark.skipif(
    torch.__version__.startswith("2.6."),
    reason="torch 2.6 calls no compiled function while another thread compiles",
)


@on_2_6
@pytest.mark.parametrize(
    ("backend", "way", "adjoint"),
    [
        ("aot_eager", wrapped, eq.Implicit()),
        ("eager", in_place, eq.Phantom()),
        ("aot_eager", in_place, eq.Unrolled()),
        ("eager", Inside, eq.Implicit()),
    ],
    ids=["wrapped", "in place", "in place, unrolled", "inside"],
)
def test_compiled_cells_in_eight_threads(backend, way, adjoint) -> None:
    """Which functions run compiled is a matter of each thread; second derivatives are Implicit's,
    which evaluates f uncompiled for them."""
    layer = eq.DEQ(way(backend), adjoint=adjoint, solver=eq.Anderson(rtol=1e-6))
    second = isinstance(adjoint, eq.Implicit)
    wanted = uncompiled(layer, second=second)
    assert_same(derivatives(layer, second=second), wanted)
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: derivatives(layer, second=second), range(8)):
            assert_same(found, wanted)


@on_2_6
@pytest.mark.parametrize("way", [wrapped, pytest.param(in_place, marks=pytest.mark.slow)])
def test_a_cell_compiled_by_inductor_in_eight_threads(way) -> None:
    test_compiled_cells_in_eight_threads("inductor", way, eq.Implicit())


@on_2_6
def test_threads_leave_compiled_code_compiled() -> None:
    calls = []

    def backend(graph, example_inputs):
        return lambda *inputs: calls.append(1) or graph.forward(*inputs)

    layer = eq.DEQ(torch.compile(Gated(), backend=backend))
    derivatives(layer, second=False)  # compiles, which torch does for each thread that is first
    with ThreadPoolExecutor(4) as threads:  # of more, torch may reach its limit of 8 compilations
        list(threads.map(lambda _: derivatives(layer, second=False), range(24)))
    before = len(calls)
    evals = int(layer(X).stats.evals.max())
    assert len(calls) - before >= evals - 2  # but for the evaluation that finds what f closes over


def test_a_second_derivative_where_f_closes_over_nothing() -> None:
    def square(z, x):
        return torch.tanh(0.4 * z * z + x)

    found = []
    for g in (square, torch.compile(square, backend="aot_eager")):
        x = X.clone().requires_grad_()
        value = from_zero(g, x, solver=eq.Anderson(rtol=1e-6)).value
        (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x))
    assert_same(*found)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_cell_compiled_for_a_single_backward(backend) -> None:
    """Its buffers are reused in it: the products of a linear solve are taken uncompiled."""
    cell = Gated()
    compiled = torch.compile(cell, backend=backend)
    for _ in range(2):
        z, x = torch.zeros_like(X).requires_grad_(), X.clone().requires_grad_()
        compiled(z, x).sum().backward()
    layer = eq.DEQ(compiled, solver=eq.Anderson(rtol=1e-6))
    if backend == "aot_eager":
        with pytest.warns(eq.SolveWarning, match="a single backward pass"):
            found = derivatives(layer, second=False)
    else:
        found = derivatives(layer, second=False)
    assert_same(found, uncompiled(layer, second=False))


def test_batches_of_many_sizes() -> None:
    """The last batch of an epoch is smaller: products stay compiled where torch's settings are the
    thread's."""
    layer = eq.DEQ(torch.compile(Gated(), backend="aot_eager"), solver=eq.Anderson(rtol=1e-6))
    with warnings.catch_warnings():
        if isinstance(private.for_many_backwards(), nullcontext):
            warnings.simplefilter("ignore", eq.SolveWarning)
        else:
            warnings.simplefilter("error", eq.SolveWarning)
        for size in (6, 3, 6, 2):
            x = X[:size]
            value = layer(x).value.square().sum()
            found = torch.autograd.grad(value, list(layer.parameters()))
            with torch.compiler.set_stance("force_eager"):
                value = layer(x).value.square().sum()
                assert_same(found, torch.autograd.grad(value, list(layer.parameters())))


def test_newton_through_a_compiled_cell() -> None:
    """Its products are exact, as those of the uncompiled cell are, and nothing is warned of."""
    layer = eq.DEQ(torch.compile(Gated(), backend="aot_eager"), solver=eq.NewtonKrylov(rtol=1e-6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", eq.SolveWarning)
        found = derivatives(layer, second=False)
    assert_same(found, uncompiled(layer, second=False))
    assert torch.equal(layer(X).stats.evals, eq.DEQ(Gated(), solver=layer.solver)(X).stats.evals)
