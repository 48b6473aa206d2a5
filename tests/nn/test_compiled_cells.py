"""What a forward holds fixed (normalised weights, masks) holds for compiled cells too."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import equilibria as eq

X = torch.linspace(-1, 1, 5 * 8).reshape(5, 8).sin()


class Cell(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        linear = nn.Linear(8, 8)
        wrap = {
            "weight_norm": eq.nn.weight_norm,
            "spectral_norm": eq.nn.spectral_norm,
            "weight_dropout": lambda module: eq.nn.weight_dropout(module, 0.3),
        }.get(kind)
        self.linear = linear if wrap is None else wrap(linear)
        self.drop = eq.nn.VariationalDropout(0.3) if kind == "dropout" else nn.Identity()

    def forward(self, z, x):
        return self.drop(0.5 * torch.tanh(self.linear(z) + x))


def wrapped(cell):
    return eq.DEQ(torch.compile(cell, backend="aot_eager"))


def in_place(cell):
    cell.compile(backend="aot_eager")
    return eq.DEQ(cell)


def with_the_model(cell):
    return torch.compile(eq.DEQ(cell), backend="aot_eager")


@pytest.mark.parametrize(
    ("kind", "way", "train"),
    [
        ("weight_norm", wrapped, True),
        ("weight_norm", with_the_model, False),
        ("spectral_norm", in_place, True),
        ("weight_dropout", with_the_model, True),
        ("weight_dropout", in_place, False),
        ("dropout", wrapped, True),
        ("dropout", with_the_model, True),
    ],
)
def test_compiled(kind: str, way, train: bool) -> None:
    """Weights change and masks are drawn anew between calls: nothing of an earlier one is left."""
    torch.compiler.reset()
    cell, plain = Cell(kind), Cell(kind)
    layers = way(cell).train(train), eq.DEQ(plain).train(train)
    for seed in range(2):
        found = []
        for layer, own in zip(layers, (cell, plain), strict=True):
            torch.manual_seed(seed)
            value = layer(X).value
            grads = torch.autograd.grad(value.square().sum(), list(own.parameters()))
            found.append((value.detach(), *grads))
            with torch.no_grad():  # as an optimiser does
                for p, g in zip(own.parameters(), grads, strict=True):
                    p.add_(g, alpha=0.1)
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()


class Normalized(nn.Module):
    """Two layers under a parametrisation."""

    def __init__(self, normalize):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        nn.init.orthogonal_(self.second.weight, 0.5)
        normalize(self)

    def forward(self, z, x):
        return torch.tanh(self.second(self.first(z)) + x)


@pytest.mark.parametrize(
    ("normalize", "way"),
    [
        (eq.nn.weight_norm, "with the model"),
        (eq.nn.spectral_norm, "by itself"),
        (eq.nn.weight_dropout, "with the model"),
        (eq.nn.weight_dropout, "by itself"),
    ],
)
def test_normalised_weights_break_no_graph(normalize, way):
    """Compiled code reads the forward's weights as inputs: new weights compile nothing anew."""
    torch.compiler.reset()
    counters.clear()
    cell, x = Normalized(normalize), torch.linspace(-1, 1, 12).view(3, 4)
    layer = eq.DEQ(torch.compile(cell, backend="aot_eager") if way == "by itself" else cell)
    plain = eq.DEQ(cell)
    called = torch.compile(layer, backend="aot_eager") if way == "with the model" else layer
    graphs = []
    for turn in range(4):
        values = []
        for each in (called, plain):
            torch.manual_seed(turn)
            with torch.no_grad():
                values.append(each(x).value)
        torch.testing.assert_close(*values, rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            for p in cell.parameters():
                p.mul_(0.9)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[-1] == 1
    assert not any("ContextVar" in reason for reason in counters["graph_break"])
    torch.compiler.reset()


def test_a_layer_that_a_compiled_cell_closes_over_keeps_its_own_weights():
    """It is no part of the outer cell, whose forward holds nothing of it."""
    torch.compiler.reset()
    inner = eq.DEQ(Normalized(lambda m: eq.nn.weight_dropout(m, 0.3)))
    outer = Normalized(eq.nn.weight_norm)
    forward = outer.forward
    outer.forward = lambda z, x: forward(z, 0.1 * inner(x).value)
    x = torch.linspace(-1, 1, 12).view(3, 4)
    for cell in (outer, torch.compile(outer, backend="aot_eager")):
        torch.manual_seed(0)
        inside = []
        hook = inner.register_forward_hook(lambda _, __, sol, seen=inside: seen.append(sol.status))
        eq.DEQ(cell, solver=eq.Picard(max_evals=3))(x)
        hook.remove()
        assert inside and all(bool((s == eq.Status.CONVERGED).all()) for s in inside)
    torch.compiler.reset()
