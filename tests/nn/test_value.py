"""A layer that hands on its value: in nn.Sequential, with trees, with the options of a call."""

from typing import assert_type

import pytest
import torch
from torch import nn

from equilibria.nn import DEQ, Value
from equilibria.solve import Picard, Solution, SolveError

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def cell(z, x):
    return 0.5 * torch.tanh(z) + x


def test_in_a_sequential_it_is_a_layer_like_others() -> None:
    torch.manual_seed(0)
    layer = DEQ(cell)
    model = nn.Sequential(nn.Linear(3, 3), Value(layer), nn.Linear(3, 2))
    wanted = model[2](layer(model[0](X)).value)
    out = model(X)
    assert torch.equal(out, wanted)
    grads = torch.autograd.grad(out.sum(), list(model.parameters()))
    assert all(grad.isfinite().all() and grad.any() for grad in grads)


def test_a_solution_in_a_sequential_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"linear was given a Solution.*eq\.nn\.Value\(layer\)"):
        nn.Sequential(DEQ(cell), nn.Linear(3, 2))(X)


def test_options_and_trees_pass_through() -> None:
    tree = Value(DEQ(lambda z, x: (cell(z[0], x), z[1]), init=lambda x: (x, x)))
    value = tree(X)
    assert isinstance(value, tuple) and torch.equal(value[1], X)
    layer = Value(DEQ(cell, solver=Picard(max_evals=1)))
    assert torch.equal(layer(X, z0=X), X)  # one evaluation returns the start
    with pytest.raises(SolveError):
        layer(X, throw=True)


def test_its_parameters_and_modes_are_the_layers() -> None:
    layer = Value(DEQ(cell, solver=Picard(), eval_solver=Picard(max_evals=1), init=nn.Linear(3, 3)))
    assert [name for name, _ in layer.named_parameters()] == [
        "layer.init.weight",
        "layer.init.bias",
    ]
    assert torch.equal(layer.eval()(X), layer.layer.init(X))


def test_what_returns_no_solution_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a module"):
        Value(cell)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="Linear returned a Tensor, not a Solution"):
        Value(nn.Linear(3, 3))(X)


def test_a_layer_is_typed_as_returning_a_solution() -> None:
    assert isinstance(assert_type(DEQ(cell)(X), Solution), Solution)
