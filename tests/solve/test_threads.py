"""A solve and its backward in any thread, and in several at once, are what they are in one."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from maps import CASES
from problems import normal, with_norm
from references import from_zero
from torch import nn
from torch.utils.checkpoint import checkpoint

import equilibria as eq

WIDTH = 4
X = normal(3, WIDTH, seed=1)
ADJOINTS: list[Any] = [
    eq.Implicit(linear=eq.GMRES(rtol=1e-11)),
    eq.Phantom(steps=3),
    eq.NeumannPhantom(steps=3),
    eq.JacobianFree(),
    eq.Shine(),
    eq.Unrolled(),
    eq.Unrolled(checkpoint=True),
]


def in_thread(call: Callable[[], Any]) -> Any:
    """What the call returns, or raises, in a thread of its own."""
    return in_threads([call])[0]


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """The same of several calls at once, which begin together."""
    results: list[Any] = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def work(place: int) -> None:
        try:
            gate.wait()
            results[place] = calls[place]()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def busy_history(weight: torch.Tensor) -> torch.Tensor:
    """A tensor with a history made in a thread that has made many nodes before."""

    def make() -> torch.Tensor:
        for _ in range(500):
            torch.mul(weight, 1.0)
        return torch.tanh(weight)

    return in_thread(make)


class Cell(nn.Module):
    """Linear, attention and a function that is no torch function, at width 4."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.double()

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        mixed = self.attention(z, z, z, need_weights=False)[0]
        return torch.tanh(0.2 * mixed + 0.2 * Sine.apply(self.linear(z)) + x)


class Sine(torch.autograd.Function):
    """sin, which torch's modes do not see into."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


def options(adjoint: Any) -> dict[str, Any]:
    # SHINE's inverse divides rounding by the last steps: at 1e-11 it has four digits fewer.
    solver = eq.Broyden(rtol=1e-6) if isinstance(adjoint, eq.Shine) else eq.Anderson(rtol=1e-11)
    return {"solver": solver, "adjoint": adjoint}


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
@pytest.mark.parametrize("forward_too", [False, True])
def test_backward_in_another_thread(adjoint: Any, forward_too: bool) -> None:
    """On a GPU every backward runs in a thread of the device."""
    cell = Cell()
    x = normal(2, 3, WIDTH, seed=2).requires_grad_()
    wanted = [x, *cell.parameters()]

    def loss() -> torch.Tensor:
        sol = from_zero(cell, x, **options(adjoint))
        return sol.value.square().sum()

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(loss(), wanted)

    expected = both()
    if forward_too:
        got = in_thread(both)
    else:
        made = loss()
        got = in_thread(lambda: torch.autograd.grad(made, wanted))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.device
@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
@pytest.mark.parametrize("wrapped", ["plain", "checkpointed", "nested"])
def test_backward_in_the_thread_of_a_device(adjoint: Any, wrapped: str) -> None:
    """As on the CPU, whose backward runs in the thread that asks for it."""
    results = []
    for device in ("cpu", "cuda"):
        layer: Any = eq.DEQ(Cell(), **options(adjoint))
        if wrapped == "nested":
            layer = eq.DEQ(Nest(layer), **options(adjoint))
        layer.to(device)
        x = normal(2, 3, WIDTH, seed=2).to(device).requires_grad_()
        history = torch.sin(x)
        call = lambda x, layer=layer: layer(x).value.square().sum()  # noqa: E731
        if wrapped == "checkpointed":
            loss = checkpoint(call, history, use_reentrant=False)
        else:
            loss = call(history)
        found = torch.autograd.grad(loss, [x, *layer.parameters()])
        results.append([g.cpu() for g in found])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_every_way_in_which_a_tensor_reaches_f(name: str) -> None:
    case = CASES[name]()

    def gradients() -> tuple[torch.Tensor, ...]:
        f, z0, operands = case.build(*case.inputs)
        sol = eq.fixed_point(f, z0, *operands, **options(ADJOINTS[0]))
        value = sum(leaf.square().sum() for leaf in torch.utils._pytree.tree_leaves(sol.value))
        first = torch.autograd.grad(value, case.inputs, create_graph=True)
        return torch.autograd.grad(sum(g.sum() for g in first), case.inputs)

    for a, b in zip(in_thread(gradients), gradients(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
def test_a_history_made_in_a_busier_thread(adjoint: Any) -> None:
    weight = with_norm(0.5, WIDTH, seed=3).requires_grad_()

    def gradient(history: torch.Tensor) -> torch.Tensor:
        f = lambda z, x: torch.tanh(z @ history + x)  # noqa: E731
        sol = from_zero(f, X, **options(adjoint))
        return torch.autograd.grad(sol.value.sum(), weight)[0]

    wanted = gradient(torch.tanh(weight))
    assert wanted.any()
    torch.testing.assert_close(gradient(busy_history(weight)), wanted)
    torch.testing.assert_close(in_thread(lambda: gradient(torch.tanh(weight))), wanted)
    mine = torch.tanh(weight)
    torch.testing.assert_close(in_thread(lambda: gradient(mine)), wanted)


def test_a_history_that_scripted_code_uses_is_an_error_in_any_thread() -> None:
    weight = with_norm(0.5, WIDTH, seed=3).requires_grad_()

    class Product(nn.Module):
        def __init__(self, matrix: torch.Tensor) -> None:
            super().__init__()
            self.matrix = matrix

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return z @ self.matrix

    def solve(matrix: torch.Tensor) -> None:
        scripted = torch.jit.script(Product(matrix))
        from_zero(lambda z, x: torch.tanh(scripted(z) + x), X)

    for make in (torch.tanh, busy_history):
        for run in (lambda c: c(), in_thread):
            with pytest.raises(RuntimeError, match="closes over a tensor with a history"):
                run(lambda make=make: solve(make(weight)))


def test_checkpointed_and_nested_layers_backward_in_another_thread() -> None:
    inner = eq.DEQ(eq.nn.weight_norm(nn.Linear(WIDTH, WIDTH).double()), **options(ADJOINTS[0]))
    with torch.no_grad():
        inner.cell.weight = 0.3 * inner.cell.weight
    inner_cell = inner.cell
    inner.cell = Inject(inner_cell)
    outer = eq.DEQ(Nest(inner), **options(ADJOINTS[0]))
    x = X.clone().requires_grad_()
    wanted_of = [x, *outer.parameters()]
    results = []
    for wrapped in (False, True):
        for threaded in (False, True):
            layer = lambda x: outer(x).value.square().sum()  # noqa: E731
            loss = checkpoint(layer, x, use_reentrant=False) if wrapped else layer(x)
            call = lambda loss=loss: torch.autograd.grad(loss, wanted_of)  # noqa: E731
            results.append(in_thread(call) if threaded else call())
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            torch.testing.assert_close(a, b)


class Inject(nn.Module):
    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(z) + x)


class Nest(nn.Module):
    """A layer inside the cell of another."""

    def __init__(self, inner: eq.DEQ) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * self.inner(z + x).value


def normalized_layer(normalize: Callable[[nn.Module], nn.Module]) -> Any:
    torch.manual_seed(0)
    linear = nn.Linear(WIDTH, WIDTH).double()
    nn.init.orthogonal_(linear.weight, 0.5)
    normalize(linear)
    return eq.DEQ(Inject(linear), **options(ADJOINTS[0])).eval()


def torchs_spectral_norm(module: nn.Module) -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(module)


@pytest.mark.parametrize(
    "normalize",
    [lambda m: m, eq.nn.weight_norm, lambda m: eq.nn.spectral_norm(m, 0.6), torchs_spectral_norm],
    ids=["plain", "weight_norm", "spectral_norm", "torch's"],
)
@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_eight_threads_on_one_layer(normalize: Any, rounds: int) -> None:
    """With and without gradients, the weights changed between calls: as from one thread."""
    layer, reference = normalized_layer(normalize), normalized_layer(normalize)
    parameters = list(layer.parameters())
    inputs = [normal(3, WIDTH, seed=seed) for seed in range(8)]

    def call(module: Any, seed: int) -> list[torch.Tensor]:
        if seed % 2:
            with torch.no_grad():
                return [module(inputs[seed]).value]
        x = inputs[seed].clone().requires_grad_()
        value = module(x).value
        return [value, *torch.autograd.grad(value.square().sum(), [x, *module.parameters()])]

    for turn in range(rounds):
        with torch.no_grad():
            for p in parameters:
                p.mul_(1 - 0.2 / (turn + 2))
        reference.load_state_dict(layer.state_dict())
        wanted = [call(reference, seed) for seed in range(8)]
        got = in_threads([lambda seed=seed: call(layer, seed) for seed in range(8)])
        for mine, theirs in zip(got, wanted, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    assert nn.utils.parametrize._cache_enabled == 0


def test_weights_stay_trainable_after_threads() -> None:
    """Two threads once froze the weights of a layer for good."""
    layer = normalized_layer(lambda m: eq.nn.spectral_norm(m, 0.6)).train()

    def many() -> None:
        with torch.no_grad():
            for _ in range(30):
                layer(X)

    in_threads([many, many])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    before = layer(X).value.detach()
    layer(X).value.square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    optimizer.step()
    assert not torch.allclose(layer(X).value, before, rtol=1e-3)
    fresh = normalized_layer(lambda m: eq.nn.spectral_norm(m, 0.6))
    layer.load_state_dict(fresh.state_dict())
    torch.testing.assert_close(layer(X).value, fresh(X).value)


def test_layers_that_share_weights_by_name_alone() -> None:
    """Threads on a layer and on its copy, whose parametrised classes are one."""
    import copy

    layer = normalized_layer(eq.nn.weight_norm)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(0.5)
    wanted = [layer(X).value, twin(X).value]
    got = in_threads([lambda m=m: m(X).value for m in (layer, twin) for _ in range(4)])
    for i, value in enumerate(got):
        torch.testing.assert_close(value, wanted[i // 4])
