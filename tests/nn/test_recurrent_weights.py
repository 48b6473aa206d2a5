"""The weights that a cell applies to its state are found, whatever the cell is made of."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import equilibria as eq
from equilibria.nn import weight_dropout, weight_norm
from equilibria.nn.init import Maps, RecurrentWeight, recurrent_weights, set_weights


class Cell(nn.Module):
    """Any modules, and what it declares of them."""

    def __init__(self, maps=None, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        if maps is not None:
            self.maps = maps

    def forward(self, z, x):
        return z


def found(model):
    return {w.path: w.maps for w in recurrent_weights(model)}


def test_the_cells_of_a_model_and_nothing_else():
    cell = Cell(w=nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(3, 4), eq.DEQ(cell), nn.Linear(4, 2))
    assert found(model) == {"1.cell.w.weight": Maps()}
    assert found(model[1]) == {"cell.w.weight": Maps()}
    assert found(cell) == {"w.weight": Maps()}
    assert found(nn.Linear(4, 4)) == {"weight": Maps()}


def test_convolutions_by_groups():
    cell = Cell(
        a=nn.Conv2d(4, 4, 3),
        b=nn.Conv1d(4, 8, 3, groups=2),
        c=nn.ConvTranspose2d(4, 6, 3, groups=2),
    )
    assert found(cell) == {
        "a.weight": Maps(),
        "b.weight": Maps(rows=(4, 4)),
        "c.weight": Maps(rows=(2, 2), transposed=True),
    }
    up = recurrent_weights(cell)[2]
    tiles = up.maps.tiles(up.value())
    assert [t.shape for t in tiles] == [(3, 2, 3, 3)] * 2
    assert torch.equal(tiles[1], up.value()[2:].transpose(0, 1))


def test_attention_and_recurrent_cells():
    cell = Cell(
        same=nn.MultiheadAttention(4, 2),
        other=nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
        gru=nn.GRUCell(3, 4),
        lstm=nn.LSTMCell(3, 4),
        rnn=nn.RNNCell(3, 4),
    )
    assert found(cell) == {
        "same.in_proj_weight": Maps(rows=(4, 4, 4)),
        "same.out_proj.weight": Maps(),
        "other.q_proj_weight": Maps(),
        "other.k_proj_weight": Maps(),
        "other.v_proj_weight": Maps(),
        "other.out_proj.weight": Maps(),
        "gru.weight_hh": Maps(rows=(4,) * 3),
        "lstm.weight_hh": Maps(rows=(4,) * 4),
        "rnn.weight_hh": Maps(),
    }


def test_what_a_cell_declares():
    inner = Cell(two=nn.Linear(4, 8), none=nn.Linear(4, 4), maps={"two": Maps(rows=(4, 4))})
    cell = Cell(
        inner=inner,
        gru=nn.GRUCell(4, 4),
        attention=nn.MultiheadAttention(4, 2),
        free=nn.Parameter(torch.zeros(4, 4)),
        maps={
            "inner.none": None,
            "gru.weight_ih": Maps(rows=(4,) * 3),
            "gru.weight_hh": None,
            "attention": None,
            "free": Maps(columns=2),
        },
    )
    assert found(cell) == {
        "free": Maps(columns=2),
        "inner.two.weight": Maps(rows=(4, 4)),
        "gru.weight_ih": Maps(rows=(4,) * 3),
    }
    # What is further out is said of the whole, and goes before what is said inside.
    cell.maps = {"inner": None}
    assert "inner.two.weight" not in found(cell)
    cell.maps = {"inner.two": None}
    assert set(found(cell)) > {"inner.none.weight"} and "inner.two.weight" not in found(cell)


@pytest.mark.parametrize(
    "maps",
    [nn.ModuleDict({"w": nn.Identity()}), [1, 2], {"w": "left"}, {1: None}, lambda: 3, {}, None],
    ids=["modules", "list", "words", "numbers", "function", "empty", "none"],
)
def test_an_attribute_of_that_name_may_be_something_else(maps):
    cell = Cell(w=nn.Linear(4, 4))
    cell.maps = maps
    assert found(cell) == {"w.weight": Maps()}


def test_a_declaration_of_what_is_not_there():
    cell = Cell(w=nn.Linear(4, 4), maps={"v": Maps(rows=(2, 2))})
    with pytest.raises(ValueError, match="Cell declares maps of 'v'"):
        recurrent_weights(cell)
    cell.maps = {"v": None}  # not applied to the state, true enough
    assert found(cell) == {"w.weight": Maps()}


def test_what_is_shared_is_one():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight
    assert list(found(Cell(a=a, b=b))) == ["a.weight"]
    assert list(found(Cell(a=a, b=a))) == ["a.weight"]
    cell = Cell(w=nn.Linear(4, 4))
    assert list(found(nn.ModuleList([eq.DEQ(cell), eq.DEQ(cell)]))) == ["0.cell.w.weight"]


def test_a_layer_inside_the_cell():
    inner = eq.DEQ(Cell(w=nn.Linear(4, 4)), init=nn.Linear(4, 4))
    model = eq.DEQ(Cell(inner=inner, v=nn.Linear(4, 4)), init=nn.Linear(4, 4))
    assert list(found(model)) == ["cell.inner.cell.w.weight", "cell.v.weight"]


def test_a_method_is_a_cell():
    cell = Cell(w=nn.Linear(4, 4))
    assert list(found(eq.DEQ(cell.forward))) == ["cell.w.weight"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.ReLU()), "no DEQ layer"),
        (eq.DEQ(lambda z, x: z + x), "plain function"),
        (eq.DEQ(Cell(norm=nn.LayerNorm(4))), "`maps`"),
        (eq.DEQ(Cell(w=nn.LazyLinear(4))), "cell.w.weight is lazy"),
    ],
    ids=["none", "function", "no layer", "lazy"],
)
def test_none(model, words):
    with pytest.raises(ValueError, match=words):
        recurrent_weights(model)


def test_the_value_is_that_of_eval_mode_and_moves_nothing():
    torch.manual_seed(0)
    layer = weight_dropout(weight_norm(nn.Linear(4, 4)), 0.5)
    expected = layer.eval().weight.detach()
    layer.train()
    state = torch.get_rng_state()
    assert torch.equal(RecurrentWeight(path="w", layer=layer).value(), expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in layer.modules())
    torchs = parametrizations.spectral_norm(nn.Linear(4, 4))
    before = {key: value.clone() for key, value in torchs.state_dict().items()}
    RecurrentWeight(path="w", layer=torchs).value()
    assert all(torch.equal(value, before[key]) for key, value in torchs.state_dict().items())


def test_a_set_weight_is_a_copy():
    for layer in (nn.Linear(4, 4), weight_norm(nn.Linear(4, 4))):
        value = torch.randn(4, 4)
        weight = RecurrentWeight(path="w", layer=layer)
        weight.set(value)
        kept = weight.value().clone()
        torch.testing.assert_close(kept, value)
        value.zero_()
        assert torch.equal(weight.value(), kept)


def test_a_shape_that_is_not_made_of_its_maps():
    with pytest.raises(ValueError, match=r"\(6, 4\) cannot be made of maps with \(4, 4\)"):
        Maps(rows=(4, 4)).tiles(torch.zeros(6, 4))
    with pytest.raises(ValueError, match="holds no linear maps"):
        Maps().tiles(torch.zeros(6))


def test_some_by_their_paths():
    cell = Cell(expand=nn.Linear(4, 8), contract=nn.Linear(8, 4), other=nn.Linear(4, 4))
    assert [w.path for w in recurrent_weights(cell, ["c*", "exp*"])] == [
        "expand.weight",
        "contract.weight",
    ]
    with pytest.raises(ValueError, match=r"matches 'b\*'; there are: expand.weight, contract"):
        recurrent_weights(cell, ["c*", "b*"])


def test_the_gain_is_what_random_entries_are_multiplied_by():
    torch.manual_seed(0)
    cell = Cell(taps=nn.Linear(64, 48), maps={"taps": Maps(columns=2)})
    (weight,) = recurrent_weights(cell)
    squares = [
        (torch.randn(4000, 32) @ tile.T).square().mean() for tile in weight.value().chunk(2, 1)
    ]
    assert weight.gain() == pytest.approx(float(sum(squares) / 2) ** 0.5, rel=0.02)
    (empty,) = recurrent_weights(nn.Linear(4, 4, device="meta"))
    assert math.isnan(empty.gain())


def test_all_are_set_or_none():
    cell = Cell(a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    weight_norm(cell.b)
    a, b = recurrent_weights(cell)
    before = a.value().clone()
    with pytest.raises(ValueError, match=r"b.weight is normalised"):
        set_weights([(a, torch.ones(4, 4)), (b, torch.zeros(4, 4))])
    assert torch.equal(a.value(), before) and b.value().isfinite().all()
    set_weights([(a, torch.ones(4, 4))])
    assert (a.value() == 1).all() and cell.a.weight.is_leaf
