"""What f closes over is what it was when f was given, and the user's modules are left alone."""

import threading
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from problems import normal
from references import from_zero
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call

import equilibria as eq

EXACT: Any = {
    "solver": eq.Picard(rtol=1e-11, max_evals=300),
    "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-11)),
}


class Cell(nn.Module):
    def __init__(self, n: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(n, n).double()
        with torch.no_grad():
            self.lin.weight.mul_(0.4)
        self.evaluations = 0

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.lin(z) + x)


class Holder:
    """An object that is no module, and holds one."""

    def __init__(self, cell: nn.Module) -> None:
        self.cell = cell

    def __call__(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.cell(z, x)

    def evaluate(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.cell(z, x)


class Owner:
    """Of a method, and cannot be called itself."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def evaluate(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.cell(z, x)


def through_default(z: Any, x: Any, cell: Any = None) -> Any:
    return cell(z, x)


def of_default(cell):
    def f(z, x, *, inner=(cell,)):
        return inner[0](z, x)

    return f


def deeper(cell):
    several = {"cells": [lambda z, x: cell(z, x)]}
    return lambda z, x: several["cells"][0](z, x)


FORMS: dict[str, Any] = {
    "module": lambda cell: cell,
    "method": lambda cell: cell.forward,
    "function": lambda cell: lambda z, x: cell(z, x),
    "callable": Holder,
    "method of an object": lambda cell: Holder(cell).evaluate,
    "method of an uncallable": lambda cell: Owner(cell).evaluate,
    "list": lambda cell: (lambda cells: lambda z, x: cells[0](z, x))([cell]),
    "dict": lambda cell: (lambda cells: lambda z, x: cells["a"](z, x))({"a": cell}),
    "partial": lambda cell: partial(through_default, cell=cell),
    "default": of_default,
    "deeper": deeper,
}
LAYERS: dict[str, Any] = {
    "fixed_point": lambda f: lambda x: from_zero(f, x, **EXACT).value,
    "DEQ": lambda f: lambda x: eq.DEQ(f, **EXACT)(x).value,
}


def data(n: int = 5) -> torch.Tensor:
    return normal(3, n, seed=7).double()


def lent_to(cell: nn.Module, factor: float = 0.5) -> dict[str, torch.Tensor]:
    return {k: (factor * v.detach()).requires_grad_() for k, v in cell.named_parameters()}


def gradients(cell: Cell, x: torch.Tensor, parameters: dict[str, torch.Tensor]) -> Any:
    """By a plain loop."""
    z = torch.zeros_like(x)
    for _ in range(200):
        z = functional_call(cell, parameters, (z, x))
    return torch.autograd.grad(z.square().sum(), list(parameters.values()))


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
def test_lent_parameters_have_their_gradient(form: str, layer: str, frozen: bool) -> None:
    cell = Cell().requires_grad_(not frozen)
    outer = nn.ModuleDict({"cell": cell})
    solve = LAYERS[layer](FORMS[form](cell))
    x, lent, value = data(), lent_to(cell), []
    outer.forward = lambda x: value.append(solve(x))  # type: ignore[method-assign]
    before = dict(cell.named_parameters())
    functional_call(outer, {f"cell.{k}": v for k, v in lent.items()}, (x,))
    wanted = gradients(cell, x, lent)
    found = torch.autograd.grad(value[0].square().sum(), list(lent.values()), retain_graph=True)
    torch.testing.assert_close(found, wanted)
    found = torch.autograd.grad(value[0].square().sum(), list(lent.values()), create_graph=True)
    torch.testing.assert_close(found, wanted)
    assert all(p is before[k] for k, p in cell.named_parameters())


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", ["module", "function", "deeper"])
def test_what_was_frozen_in_the_forward_is_a_constant(form: str, layer: str, order: int) -> None:
    """Thawed before the backward, as in a network trained part by part."""
    cell = Cell()
    x = data().requires_grad_()
    cell.requires_grad_(False)
    value = LAYERS[layer](FORMS[form](cell))(x).square().sum()
    cell.requires_grad_(True)
    (found,) = torch.autograd.grad(value, x, create_graph=order == 2)
    if order == 2:
        (found,) = torch.autograd.grad(found.square().sum(), x)
    twin = Cell().requires_grad_(False)
    y = x.detach().requires_grad_()
    (wanted,) = torch.autograd.grad(LAYERS[layer](twin)(y).square().sum(), y, create_graph=True)
    if order == 2:
        (wanted,) = torch.autograd.grad(wanted.square().sum(), y)
    torch.testing.assert_close(found, wanted)
    assert all(p.grad is None and p.requires_grad for p in cell.parameters())


def test_a_tensor_that_was_frozen_in_the_forward_is_a_constant() -> None:
    matrix, x = 0.1 * normal(5, 5, seed=3).double(), data().requires_grad_()
    value = from_zero(lambda z, x: torch.tanh(z @ matrix + x), x, **EXACT)
    matrix.requires_grad_()
    value.value.sum().backward()
    assert x.grad is not None and matrix.grad is None


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", ["module", "function"])
def test_what_is_frozen_after_the_forward_gets_no_gradient(form: str, layer: str) -> None:
    """As in torch itself, which gives nothing to a leaf that wants nothing any more."""
    cell, x = Cell(), data().requires_grad_()
    (wanted,) = torch.autograd.grad(LAYERS[layer](cell)(x).square().sum(), x)
    value = LAYERS[layer](FORMS[form](cell))(x).square().sum()
    cell.requires_grad_(False)
    value.backward()
    torch.testing.assert_close(x.grad, wanted)
    assert all(p.grad is None for p in cell.parameters())


def test_backwards_in_threads_write_to_nobodys_module() -> None:
    """Backwards of lent parameters beside each other and beside forwards of the layer's own."""
    layer = eq.DEQ(Cell(8), **EXACT)
    x, parameters = data(8), dict(layer.named_parameters())
    own = layer(x).value.detach()
    lent = lent_to(layer)
    values = [functional_call(layer, lent, (x,)).value.sum() for _ in range(24)]
    wanted = torch.autograd.grad(values[0], list(lent.values()), retain_graph=True)
    wrong: list[str] = []

    def backward(share: int) -> None:
        for value in values[share::3]:
            found = torch.autograd.grad(value, list(lent.values()))
            if not all(torch.allclose(a, b) for a, b in zip(found, wanted, strict=True)):
                wrong.append("gradient")

    def forward() -> None:
        for _ in range(12):
            if not torch.allclose(layer(x).value, own):
                wrong.append("value")

    threads = [threading.Thread(target=backward, args=(share,)) for share in range(3)]
    threads.append(threading.Thread(target=forward))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(p is parameters[k] for k, p in layer.named_parameters())


class Read(dict):
    """Counts what is read by key."""

    reads = 0

    def __getitem__(self, key: str) -> Any:
        Read.reads += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_backward_reads_nobodys_module(layer: str, order: int) -> None:
    """In which another thread may have put other parameters meanwhile."""
    cell, x = Cell(), data().requires_grad_()
    for module in cell.modules():
        module._parameters = Read(module._parameters)
    value = LAYERS[layer](cell)(x).square().sum()
    Read.reads = 0
    (found,) = torch.autograd.grad(value, x, create_graph=order == 2)
    if order == 2:
        torch.autograd.grad(found.sum(), x)
    assert Read.reads == 0


def test_a_replica_has_the_masks_and_the_normalised_weights_of_the_forward() -> None:
    class Masked(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.drop = eq.nn.VariationalDropout(0.5)
            eq.nn.weight_norm(self.lin)

        def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.drop(self.lin(z)) + x)

    layer, x = eq.DEQ(Masked(), **EXACT), data().requires_grad_()
    same = {k: v.detach().clone().requires_grad_() for k, v in layer.named_parameters()}
    found = []
    for parameters in (dict(layer.named_parameters()), same):
        torch.manual_seed(3)
        value = functional_call(layer, parameters, (x,)).value.square().sum()
        found.append(torch.autograd.grad(value, [x, *parameters.values()]))
    torch.testing.assert_close(found[0], found[1])


def test_weights_that_two_modules_share_have_one_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Cell(), Cell()
            self.other.lin = self.one.lin

        def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return 0.5 * self.one(z, x) + 0.5 * self.other(z, -x)

    layer, x = eq.DEQ(Tied(), **EXACT), data()
    lent = {k: v.detach().clone().requires_grad_() for k, v in layer.named_parameters()}
    found = torch.autograd.grad(
        functional_call(layer, lent, (x,)).value.square().sum(), list(lent.values())
    )
    wanted = torch.autograd.grad(layer(x).value.square().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("which", ["operand", "state"])
@pytest.mark.parametrize("change", [lambda t: t.add_(0.1), lambda t: t.mul_(0.5)])
def test_an_input_changed_in_place_is_refused(which: str, change: Any) -> None:
    def f(z, x):
        change(x if which == "operand" else z)
        return torch.tanh(z) * 0.5 + x

    x = data()
    with pytest.raises(RuntimeError, match=f"changed .*{which}.* in place.*x \\+ y"):
        eq.DEQ(f)(x)


@pytest.mark.parametrize("build", [eq.DEQ, lambda f: f], ids=["DEQ", "fixed_point"])
@pytest.mark.parametrize("form", ["function", "partial", "callable"])
def test_batch_norm_in_a_function_is_warned_of(form: str, build: Any) -> None:
    class Normed(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(5).double()

        def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.norm(super().forward(z, x))

    x = data()
    with pytest.warns(UserWarning, match="BatchNorm1d.*GroupNorm or LayerNorm"):
        f = build(FORMS[form](Normed()))
        if not isinstance(f, eq.DEQ):
            from_zero(f, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        f = build(FORMS[form](Normed().eval()))
        if not isinstance(f, eq.DEQ):
            from_zero(f, x)


def test_a_parameter_that_is_frozen_during_a_backward_has_its_gradient() -> None:
    """As by another thread, between the linear solve and the product with df/dp."""
    cell = Cell()
    x = normal(3, 5, seed=4)

    def freeze(_: Any) -> None:
        cell.lin.bias.requires_grad_(False)

    def gradients(freezes: bool) -> Any:
        def f(z: Any, x: Any) -> Any:
            out = torch.tanh(cell.lin(z) + x)
            if freezes and out.requires_grad:
                out.register_hook(freeze)
            return out

        value = from_zero(f, x, **EXACT).value
        return torch.autograd.grad(value.sum(), [cell.lin.weight, cell.lin.bias])

    for a, b in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(a, b)
    assert not cell.lin.bias.requires_grad


class Elsewhere:
    """Another thread, that freezes and thaws a parameter."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter, self.now = parameter, False

    def set_requires_grad(self, value: bool) -> None:
        if self.now:
            thread = threading.Thread(target=self.parameter.requires_grad_, args=(value,))
            thread.start()
            thread.join()


@pytest.mark.parametrize("thaws", [True, False])
def test_a_parameter_that_is_frozen_as_backward_evaluates_has_its_gradient(thaws: bool) -> None:
    cell = Cell()
    x = normal(3, 5, seed=4)
    elsewhere = Elsewhere(cell.lin.bias)

    def f(z: Any, x: Any) -> Any:
        elsewhere.set_requires_grad(False)
        out = torch.tanh(cell.lin(z) + x)
        elsewhere.set_requires_grad(thaws)
        return out

    value = from_zero(f, x, **EXACT).value
    parameters = cell.lin.weight, cell.lin.bias
    wanted = torch.autograd.grad(value.sum(), parameters, retain_graph=True)
    elsewhere.now = True
    found = torch.autograd.grad(value.sum(), [get_gradient_edge(p) for p in parameters])
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b)


def test_a_parameter_that_is_thawed_as_backward_evaluates_stays_a_constant() -> None:
    cell = Cell()
    x = normal(3, 5, seed=4)
    cell.lin.bias.requires_grad_(False)
    elsewhere = Elsewhere(cell.lin.bias)

    def f(z: Any, x: Any) -> Any:
        elsewhere.set_requires_grad(True)
        return torch.tanh(cell.lin(z) + x)

    value = from_zero(f, x, **EXACT).value
    wanted = torch.autograd.grad(value.sum(), cell.lin.weight, retain_graph=True)
    elsewhere.now = True
    found = torch.autograd.grad(value.sum(), cell.lin.weight)
    torch.testing.assert_close(wanted, found)
