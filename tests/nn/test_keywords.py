"""Inputs of a layer that its cell takes by name."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import equilibria as eq
from equilibria.run.export import exportable

D = torch.float64
EXACT = {
    "solver": eq.Picard(rtol=1e-13, max_evals=500),
    "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-13, max_evals=300)),
}


class Cell(nn.Module):
    """By position all, or the last ones by name."""

    def __init__(self, p=0.0):
        super().__init__()
        self.linear = nn.Linear(4, 4).double()
        self.drop = eq.nn.VariationalDropout(p)
        nn.init.orthogonal_(self.linear.weight, 0.45)

    def forward(self, z, x, t=None, bias=None, *, flag=False):
        out = self.linear(self.drop(z)) + x
        out = out if t is None else out * t
        out = out if bias is None else out + sum(bias)
        return torch.tanh(-out if flag else out)


@pytest.fixture
def data():
    torch.manual_seed(0)
    x, t = torch.randn(5, 4, dtype=D), torch.rand(5, 1, dtype=D)
    bias = [torch.randn(4, dtype=D), torch.randn(1, dtype=D)]
    return [y.requires_grad_() for y in (x, t, *bias)]


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_tensors_are_operands_like_those_by_position(data, p):
    x, t, *bias = data
    layer = eq.DEQ(Cell(p), **EXACT)
    torch.manual_seed(1)
    named = layer(x, bias=eq.shared(bias), t=t)
    torch.manual_seed(1)
    placed = layer(x, t, eq.shared(bias))
    assert torch.equal(named.value, placed.value)
    of = (*data, *layer.parameters())
    gradients = []
    for sol in (named, placed):
        first = torch.autograd.grad(sol.value.cos().sum(), of, create_graph=True)
        gradients.append([*first, *torch.autograd.grad(first[0].square().sum(), of)])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
    assert gradients[0][1].abs().min() > 0


def test_numbers_flags_and_none_pass_as_they_are():
    seen = []

    def cell(z, x, **keywords):
        seen.append(keywords)
        return 0.5 * z + x

    given = {"a": 0.3, "flag": True, "nothing": None, "text": "mean", "tree": {"k": 2}, "rows": 1}
    assert eq.DEQ(cell)(torch.ones(2, 3), **given).value.shape == (2, 3)
    assert all(each == given for each in seen) and seen[0]["flag"] is True


def test_samples_that_leave_take_their_keywords_along():
    rate = torch.linspace(0.1, 0.95, 8, dtype=D)[:, None]
    sizes = []

    def cell(z, x, *, rate):
        sizes.append((len(z), len(rate)))
        return rate * z + x

    x = torch.ones(8, 1, dtype=D)
    layer = eq.DEQ(cell, drop_finished=True, solver=eq.Picard(rtol=1e-10, max_evals=500))
    torch.testing.assert_close(layer(x, rate=rate).value, 1 / (1 - rate))
    assert min(sizes) < (8, 8) and all(a == b for a, b in sizes)


def test_an_advance_and_a_value(data):
    x, t, *_ = data
    layer = eq.DEQ(Cell(), **EXACT)
    sol = layer(x, t=t)
    assert torch.equal(eq.nn.Value(layer)(x, t=t), sol.value)
    assert torch.equal(eq.nn.Value(layer)(x, t=t, z0=sol.value), sol.value)
    step = layer.advance(sol.value, x, t=t, flag=True)
    assert torch.equal(step.value, layer.cell(sol.value, x, t, flag=True))
    assert torch.autograd.grad(step.value.sum(), t)[0].abs().min() > 0


def test_under_transforms(data):
    x, t, *_ = (each.detach() for each in data)
    layer = eq.DEQ(Cell(), **EXACT)
    weights = dict(layer.named_parameters())

    def of(t, weights):
        return functional_call(layer, weights, (x,), {"t": t}).value.sum()

    ts = torch.stack([t, 2 * t])
    found = vmap(grad(of), in_dims=(0, None))(ts, weights)
    torch.testing.assert_close(found, torch.stack([grad(of)(each, weights) for each in ts]))


def test_in_a_compiled_program(data):
    x, t, *_ = data
    layer = eq.DEQ(Cell(), **EXACT)
    compiled = torch.compile(
        lambda x, t: 2 * layer(1 * x, t=1 * t, flag=True).value, backend="eager"
    )
    torch.testing.assert_close(compiled(x, t), 2 * layer(x, t=t, flag=True).value)


def test_weights_of_then_in_backward(data):
    """Backward evaluates a replica of a cell whose weights have gone."""
    x, t, *_ = data
    layer = eq.DEQ(Cell(), **EXACT)
    mine = {name: 0.9 * w.detach() for name, w in layer.named_parameters()}
    sol = functional_call(layer, mine, (x,), {"t": t})
    (found,) = torch.autograd.grad(sol.value.sum(), t)
    layer.load_state_dict(mine)
    torch.testing.assert_close(found, torch.autograd.grad(layer(x, t=t).value.sum(), t)[0])


def test_the_start_is_by_the_inputs_by_position(data):
    x, t, *_ = data
    starts = []
    layer = eq.DEQ(Cell(), init=lambda x: starts.append(x) or torch.zeros_like(x))
    layer(x, t=t)
    assert starts == [x]
    with pytest.raises(ValueError, match="zeros like the first input by position"):
        eq.DEQ(Cell())(x=x)
    assert eq.DEQ(Cell())(x=x, z0=torch.zeros_like(x)).value.shape == x.shape
    warm = layer(x, t=t)
    with pytest.raises(ValueError, match="warm is a solution of 5 samples and the inputs have 3"):
        layer(x, t=t[:3], warm=warm)


def test_a_wrong_first_axis_names_the_keyword(data):
    x, t, *_ = data
    with pytest.raises(ValueError, match=r"operand 't' has the shape \(3, 1\)"):
        eq.DEQ(Cell())(x, t=t[:3])
    with pytest.raises(ValueError, match=r"operand 0 has the shape \(3, 4\)"):
        eq.DEQ(Cell(), init=lambda x: torch.zeros(5, 4, dtype=D))(x[:3], t=t)
    with pytest.raises(TypeError, match=r"operand 't' has eq\.shared"):
        eq.DEQ(Cell())(x, t=[eq.shared(t)])


def test_names_that_the_cell_does_not_know():
    layer, x = eq.DEQ(Cell()), torch.zeros(2, 4, dtype=D)
    for given, words in (
        ({"flga": True}, "'flga' is unknown; did you mean 'flag'?"),
        ({"wram": None}, "'wram' is unknown; did you mean 'warm'?"),
    ):
        for call in (layer, lambda x, **k: layer.advance(x, x, **k)):
            with pytest.raises(TypeError, match=words):
                call(x, **given)
    with pytest.raises(TypeError, match="here with 1 input, x="):
        layer(x, x=x)


@pytest.mark.parametrize("name", eq.DEQ.options)
def test_names_of_the_layers_own(name):
    assert name in ("z0", "warm", "states", "trace", "throw", "coupled", "starts")
    for cell in (f"lambda z, x, *, {name}: z", f"lambda z, x, {name}=None: z"):
        with pytest.raises(ValueError, match=f"the cell has a parameter '{name}'"):
            eq.DEQ(eval(cell))
    x = torch.ones(2, 3)  # one that is given by position is the cell's
    assert eq.DEQ(eval(f"lambda z, x, {name}: 0.5 * z + x * {name}"))(x, x).value.shape == x.shape


def test_an_exportable_copy(data):
    x, t, *bias = (each.detach() for each in data)
    layer = eq.DEQ(Cell(), **EXACT).eval()
    given = {"t": t, "bias": eq.shared(bias), "flag": True}
    copy = exportable(layer, evals=60)
    torch.testing.assert_close(copy(x, throw=True, **given).value, layer(x, **given).value)

    class Pair(nn.Module):
        def forward(self, z, x):
            return 0.5 * z + x, z

    pair = exportable(eq.DEQ(Pair(), has_aux=True), evals=60)
    torch.testing.assert_close(pair(x).value, 2 * x)


def test_what_measures_a_layer_refuses_them():
    class Model(nn.Module):
        def __init__(self, **options):
            super().__init__()
            self.layer = eq.DEQ(Cell(), **options)

        def forward(self, x):
            return self.layer(x, t=0.5).value

    x = torch.ones(2, 4, dtype=D)
    with pytest.raises(ValueError, match="is given t by name"):
        eq.stability.doctor(Model(), x)
    with pytest.raises(ValueError, match="has_aux=True"):
        eq.stability.doctor(Model(has_aux=True), x)
