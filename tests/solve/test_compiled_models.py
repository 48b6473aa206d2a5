"""torch.compile around a program that solves: the solve runs as it is, f as the program does."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from maps import Gated
from problems import normal
from torch import nn
from torch._dynamo.utils import counters

import equilibria as eq
from equilibria.solve.boundary import as_around, boundary

X = normal(6, 8, seed=1).float()
TOLERANCE = {"rtol": 1e-5}
# Each solver, each adjoint and each backend at least once.
PAIRS = [
    (eq.Picard(**TOLERANCE), eq.Implicit(), "aot_eager"),
    (eq.Anderson(**TOLERANCE), eq.Phantom(), "aot_eager"),
    (eq.Anderson(period=3, **TOLERANCE), eq.NeumannPhantom(), "eager"),
    (eq.Broyden(**TOLERANCE), eq.Shine(), "aot_eager"),
    (eq.NewtonKrylov(**TOLERANCE), eq.JacobianFree(), "aot_eager"),
    (eq.Auto(**TOLERANCE), eq.Unrolled(), "eager"),
]


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


class Model(nn.Module):
    """A layer before, a fixed point, and arithmetic behind it."""

    def __init__(self, cell=None, **options) -> None:
        super().__init__()
        self.deq = eq.DEQ(Gated() if cell is None else cell, **options)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        sol = self.deq(x * self.scale)
        return (sol.value * self.scale).sin() + 0.1


class Plain(Model):
    """The layer alone."""

    def forward(self, x):
        return self.deq(x).value


class Bare(nn.Module):
    """`fixed_point` of a function that closes over a module."""

    def __init__(self, solver=None, adjoint=None) -> None:
        super().__init__()
        self.cell = Gated()
        self.options = {"solver": solver, "adjoint": adjoint}

    def forward(self, x):
        f = lambda z, u: 0.9 * self.cell(z, u)  # noqa: E731
        sol = eq.fixed_point(f, torch.zeros_like(x), 2 * x, **self.options)
        return sol.value.sin()


def outcome(model, function, x=X, inference=False):
    """Values and gradients in train mode, values in eval mode; those without gradients too."""
    model.train()
    model.zero_grad()
    x = x.clone().requires_grad_()
    value = function(x)
    value.square().sum().backward()
    found = [value.detach(), x.grad, *(p.grad for p in model.parameters())]
    model.eval()
    found.append(function(x).detach())
    if inference:  # compiled anew
        with torch.no_grad():
            found.append(function(x))
    return found


def assert_same(found, wanted, size=1) -> None:
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=size * 1e-4, atol=size * 1e-5)


def assert_compiles(model, backend, rounds=1, size=1, inference=False) -> None:
    """Rounds of training; `size` in units of the usual tolerance."""
    compiled = torch.compile(model, backend=backend)
    for _ in range(rounds):
        found = (outcome(model, each, inference=inference) for each in (compiled, model))
        assert_same(*found, size)
        with torch.no_grad():  # as an optimiser does
            for p in model.parameters():
                p.mul_(0.9)


@pytest.mark.parametrize(("solver", "adjoint", "backend"), PAIRS, ids=lambda x: type(x).__name__)
def test_a_model(solver, adjoint, backend) -> None:
    assert_compiles(Model(solver=solver, adjoint=adjoint), backend)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair[1]).__name__)
@pytest.mark.slow
def test_a_model_by_inductor(pair) -> None:
    solver, adjoint, _ = pair
    # The matrix that Shine shares depends on the path to the solution, and so on rounding.
    size = 50 if isinstance(adjoint, eq.Shine) else 1
    assert_compiles(Model(solver=solver, adjoint=adjoint), "inductor", size=size)


class Outer(nn.Module):
    """A cell with a layer inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = eq.DEQ(Gated(), solver=eq.Anderson(rtol=1e-6))
        self.weight = nn.Parameter(0.1 * normal(8, 8, seed=9).float())

    def forward(self, z, x):
        return torch.tanh(z @ self.weight + self.inner(0.3 * z + x).value)


PROGRAMS = {
    "weights that change": (Model, "eager", {"rounds": 3, "inference": True}),
    "weights that change, by inductor": (Plain, "inductor", {"rounds": 3}),
    "bare": (Bare, "aot_eager", {"inference": True}),
    "bare, checkpointed": (lambda: Bare(adjoint=eq.Unrolled(checkpoint=True)), "eager", {}),
    "drop_finished": (lambda: Model(drop_finished=True), "aot_eager", {}),
    "coupled": (lambda: Model(coupled=True), "aot_eager", {}),
    "compiled cell": (lambda: Model(torch.compile(Gated(), backend="aot_eager")), "aot_eager", {}),
    "a layer in a layer": (lambda: Model(Outer()), "eager", {}),
}


@pytest.mark.filterwarnings("ignore:f was compiled for a single backward")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str) -> None:
    make, backend, options = PROGRAMS[name]
    assert_compiles(make(), backend, **options)


class Counting:
    """A backend that runs graphs as they are and counts the calls of those that hold a tanh."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph, example_inputs):
        counted = "tanh" in graph.code

        def run(*inputs):
            self.calls += counted
            return graph.forward(*inputs)

        return run


@pytest.mark.parametrize("kind", [Model, Bare])
def test_the_cell_is_compiled_with_the_model(kind) -> None:
    """One graph break, at the solve; but for the first evaluation, which shows what f closes over,
    every evaluation runs the cell's own graph."""
    backend, model = Counting(), kind()
    compiled = torch.compile(model, backend=backend)
    compiled(X)
    assert sum(counters["graph_break"].values()) == 1
    before = backend.calls
    compiled(X)
    if kind is Model:
        assert backend.calls - before >= model.deq(X).stats.evals.max() - 2
    assert backend.calls > before > 0


@pytest.mark.parametrize(
    ("words", "compiled"), [({"backend": "eager"}, True), ({"mode": "reduce-overhead"}, False)]
)
def test_the_cell_is_not_replayed(words, compiled) -> None:
    """A CUDA graph returns the same buffer each time, and a solver keeps what it was given."""
    seen = []

    @boundary
    def cross(x):
        seen.append(as_around(torch.tanh) is not torch.tanh)
        return x

    torch.compile(lambda x: cross(x), **words)(X)
    assert seen == [compiled]


def test_what_a_solution_tells() -> None:
    class Told(Model):
        def forward(self, x):
            sol = self.deq(x, trace=True, states=(1, 3))
            again = self.deq(1.1 * x, warm=sol)
            told = again.value + sum(state for state in sol.states)
            told = told + sol.stats.evals.unsqueeze(1) + sol.status.unsqueeze(1)
            if torch.is_grad_enabled():
                told = told + eq.stability.jacobian_penalty(sol)
            return told + len(sol.stats.trace)

    model = Told()
    found = []
    for function in (torch.compile(model, backend="eager"), model):
        torch.manual_seed(0)  # the penalty's probes
        found.append(outcome(model, function))
    assert_same(*found)


def test_autocast_inside() -> None:
    class Cast(Model):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    model = Cast(solver=eq.Picard(rtol=3e-2))
    compiled = torch.compile(model, backend="aot_eager")
    for got, want in zip(outcome(model, compiled), outcome(model, model), strict=True):
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("adjoint", "backend"),
    [(eq.Implicit(), "aot_eager"), (eq.Unrolled(checkpoint=True), "eager")],
    ids=repr,
)
def test_a_whole_training_step(adjoint, backend) -> None:
    """Backward runs in the compiled function too, with its compiler at work on what it calls."""
    model = Model(adjoint=adjoint)

    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        return loss.detach()

    found = []
    for function in (torch.compile(step, backend=backend), step):
        model.zero_grad()
        function(X)
        model.zero_grad()
        loss = function(X)  # compiled by now
        found.append([loss, *(p.grad for p in model.parameters())])
    assert_same(*found)


def test_second_derivatives_of_what_only_the_layer_computes() -> None:
    """What surrounds the layer is compiled, and compiled code has no second derivative."""
    model = Plain(solver=eq.Anderson(rtol=1e-6))
    found = []
    for function in (torch.compile(model, backend="aot_eager"), model):
        x = X.clone().requires_grad_()
        parameters = [x, *model.deq.parameters()]
        first = torch.autograd.grad(function(x).square().sum(), parameters, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), parameters))
    assert_same(*found)


def test_batches_of_many_sizes_and_inference() -> None:
    model = Model()
    compiled = torch.compile(model, backend="eager")
    with torch.inference_mode():
        for size in (6, 1, 2, 3):
            torch.testing.assert_close(compiled(X[:size]), model(X[:size]), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(
    torch.__version__.startswith("2.6."),
    reason="torch 2.6 calls no compiled function while another thread compiles",
)
def test_eight_threads_on_a_compiled_model() -> None:
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")

    def once(function):
        x = X.clone().requires_grad_()
        value = function(x)
        return [value.detach(), *torch.autograd.grad(value.sum(), [x, *model.parameters()])]

    wanted = once(model)
    once(compiled)
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: once(compiled), range(24)):
            assert_same(found, wanted)


def test_backward_from_another_thread() -> None:
    """It evaluates the cell by the compiler of the forward, which is not at work there."""
    backend, model = Counting(), Model()
    value = torch.compile(model, backend=backend)(X).sum()
    before = backend.calls
    with ThreadPoolExecutor(1) as other:
        found = other.submit(torch.autograd.grad, value, list(model.parameters())).result()
    assert backend.calls > before
    assert_same(found, torch.autograd.grad(model(X).sum(), list(model.parameters())))


@pytest.mark.parametrize("kind", [Model, Bare])
def test_one_graph_is_refused(kind) -> None:
    model = kind()
    words = "whose length depends on the data"
    with pytest.raises(RuntimeError, match=f"{words}|disable"):  # torch 2.6 gives no reason
        torch.compile(model, fullgraph=True, backend="eager")(X)
    with pytest.raises(RuntimeError, match=words):
        torch.export.export(model, (X,), strict=False)
    assert model(X).isfinite().all()


def test_the_compiler_is_not_imported() -> None:
    """It takes longer than many programs that compile nothing."""
    import subprocess
    import sys

    program = (
        "import sys, torch, equilibria as eq\n"
        "x = torch.ones(2, 3, requires_grad=True)\n"
        "eq.DEQ(lambda z, x: 0.5 * z.cos() + x)(x).value.sum().backward()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
