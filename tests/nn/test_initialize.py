"""`initialize` makes recurrent weights members of an ensemble, or changes nothing."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import equilibria as eq
from equilibria.nn import spectral_norm, weight_dropout, weight_norm
from equilibria.nn.init import ENSEMBLES, Maps, fill, initialize


class Cell(nn.Module):
    """f(z; x) = tanh(W z + U x), with layers of any shape beside W."""

    def __init__(self, width=6, **modules):
        super().__init__()
        self.w = nn.Linear(width, width)
        self.u = nn.Linear(width, width)
        self.maps = {"u": None}
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, z, x):
        return torch.tanh(self.w(z) + self.u(x))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def snapshot(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def same(model, before):
    return all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_the_recurrent_weight_alone_is_a_member(ensemble):
    model = nn.Sequential(nn.Linear(3, 6), eq.DEQ(Cell()), nn.Linear(6, 2))
    before = snapshot(model)
    (row,) = initialize(model, ensemble, 0.5, generator=seeded())
    expected = fill(torch.empty(6, 6), ensemble, 0.5, generator=seeded())
    assert expected == row.ensembles == (ensemble,)
    assert row.path == "1.cell.w.weight" and row.shape == (6, 6) and row.scale == 0.5
    weight = model[1].cell.w.weight
    assert row.gain == pytest.approx(weight.square().sum(1).mean().sqrt().item())
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {row.path}
    assert weight.requires_grad and weight.grad_fn is None


def test_it_is_seeded_and_says_what_it_did():
    model, twin = eq.DEQ(Cell()), eq.DEQ(Cell())
    (row,) = initialize(model, "goe", 0.5, generator=seeded(3))
    initialize(twin, "goe", 0.5, generator=seeded(3))
    assert torch.equal(model.cell.w.weight, twin.cell.w.weight)
    assert str(row) == f"cell.w.weight (6 x 6): goe, scale 0.5, gain {row.gain:.3g}"
    torch.manual_seed(3)
    initialize(model, "goe", 0.5)
    torch.manual_seed(3)
    initialize(twin, "goe", 0.5)
    assert torch.equal(model.cell.w.weight, twin.cell.w.weight)


def test_each_map_of_a_weight_is_a_member():
    model = eq.DEQ(Cell(attention=nn.MultiheadAttention(8, 2), gru=nn.GRUCell(3, 5)))
    rows = {row.path: row for row in initialize(model, "orthogonal", 0.7, generator=seeded())}
    for path, size, count in (
        ("cell.attention.in_proj_weight", 8, 3),
        ("cell.gru.weight_hh", 5, 3),
    ):
        assert rows[path].ensembles == ("orthogonal",) * count
        weight = model.get_parameter(path).detach()
        for part in weight.split(size):
            torch.testing.assert_close(part @ part.T, 0.49 * torch.eye(size))
        assert rows[path].gain == pytest.approx(0.7)
    assert str(rows["cell.gru.weight_hh"]).startswith("cell.gru.weight_hh (15 x 5): 3 maps, orth")


def test_maps_side_by_side_and_in_groups():
    conv = nn.Conv2d(4, 4, 3, groups=2)
    cell = Cell(taps=nn.Linear(12, 6), conv=conv)
    cell.maps = {"u": None, "taps": Maps(columns=2)}
    rows = initialize(cell, "goe", 0.5)
    assert [row.ensembles for row in rows] == [("goe",), ("goe",) * 2, ("goe",) * 2]
    for tile in cell.taps.weight.chunk(2, 1):
        assert torch.equal(tile, tile.T)
    for tile in conv.weight.split(2):
        assert torch.equal(tile, tile.transpose(0, 1).flip(2, 3))


def test_a_transposed_convolution_has_the_fan_in_of_its_inputs():
    cell = Cell(up=nn.ConvTranspose2d(64, 16, 3))
    _, row = initialize(cell, "gaussian", 1.0, generator=seeded())
    assert cell.up.weight.var().item() == pytest.approx(1 / (64 * 9), rel=0.1)
    assert row.gain == pytest.approx(1, rel=0.1)


def test_what_cannot_be_a_member_is_gaussian_and_said_to_be():
    cell = Cell(wide=nn.Linear(6, 9), conv=nn.Conv2d(4, 4, 3), even=nn.Conv1d(4, 4, 2))
    gaussian = {"goe": {"wide", "even"}, "antisymmetric": {"wide", "even"}}
    gaussian["normal"] = {"wide", "even", "conv"}
    for ensemble, names in gaussian.items():
        rows = initialize(cell, ensemble, 0.5)
        assert {r.path.split(".")[0] for r in rows if r.ensembles == ("gaussian",)} == names
        assert {r.ensembles[0] for r in rows} == {ensemble, "gaussian"}


def test_some_of_the_layers():
    model = eq.DEQ(Cell(expand=nn.Linear(6, 12), contract=nn.Linear(12, 6)))
    before = snapshot(model)
    rows = initialize(model, "orthogonal", layers=["*expand*", "cell.c*"])
    assert [row.path for row in rows] == ["cell.expand.weight", "cell.contract.weight"]
    assert torch.equal(model.cell.w.weight, before["cell.w.weight"])
    # More outputs than inputs: of orthonormal columns the outputs are smaller.
    assert rows[0].gain == pytest.approx(math.sqrt(6 / 12)) and rows[1].gain == pytest.approx(1)


def test_options_of_the_ensemble():
    cell = Cell()
    initialize(cell, "normal", 0.5, spectrum=[1, 1, 1, -1, -1, -1])
    weight = cell.w.weight.detach()
    torch.testing.assert_close(weight, weight.T)
    torch.testing.assert_close(weight @ weight, 0.25 * torch.eye(6), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dress", "bounded"),
    [
        (weight_norm, False),
        (lambda m: weight_dropout(m, 0.5), False),
        (lambda m: weight_dropout(weight_norm(m), 0.5), False),
        (lambda m: spectral_norm(m, 5.0), False),
        (lambda m: spectral_norm(m, 0.3), True),
        (parametrizations.weight_norm, False),
    ],
    ids=["weight norm", "dropout", "both", "spectral norm", "bound", "torch's"],
)
def test_a_normalised_weight_is_what_is_said(dress, bounded):
    cell = Cell()
    dress(cell.w)
    (row,) = initialize(eq.DEQ(cell), "orthogonal", 0.6)
    weight = cell.eval().w.weight.detach()
    if bounded:
        # No larger, and smaller by 3 % at most, as spectral_norm promises.
        assert 0.29 < row.gain < 0.3 + 1e-6
    else:
        torch.testing.assert_close(weight @ weight.T, 0.36 * torch.eye(6))
        assert row.gain == pytest.approx(0.6)
    assert row.gain == pytest.approx(weight.square().sum(1).mean().sqrt().item())
    assert row.path == "cell.w.weight" and parametrize.is_parametrized(cell.w, "weight")


def test_training_mode_and_the_dropout_of_weights_do_not_matter():
    cell = Cell()
    weight_dropout(cell.w, 0.5)
    (row,) = initialize(cell.train(), "orthogonal", 0.6, generator=seeded())
    assert row.gain == pytest.approx(0.6) and cell.w.training


def test_a_shared_weight_is_filled_once():
    shared = nn.Linear(6, 6)
    cell = Cell(a=shared, b=nn.Linear(6, 6))
    cell.b.weight = shared.weight
    rows = initialize(cell, "orthogonal", generator=seeded())
    assert [row.path for row in rows] == ["w.weight", "a.weight"]


def test_a_declared_tensor_of_a_cell():
    cell = Cell(free=nn.Parameter(torch.zeros(6, 6)))
    cell.register_buffer("fixed", torch.zeros(6, 6))
    cell.maps = {"u": None, "w": None, "free": Maps(), "fixed": Maps()}
    assert [r.path for r in initialize(cell, "goe", 0.5)] == ["free", "fixed"]
    assert torch.equal(cell.fixed, cell.fixed.T) and cell.fixed.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision(dtype):
    cell = Cell().to(dtype)
    (row,) = initialize(cell, "orthogonal", 0.6, generator=seeded())
    assert cell.w.weight.dtype == dtype and row.gain == pytest.approx(0.6, rel=0.01)


def test_a_model_without_values():
    with torch.device("meta"):
        model = eq.DEQ(Cell())
    (row,) = initialize(model, "orthogonal", 0.6)
    assert math.isnan(row.gain) and row.shape == (6, 6)


def test_a_saved_state_has_it():
    model = eq.DEQ(Cell())
    weight_norm(model.cell.w)
    twin = copy.deepcopy(model)
    initialize(model, "goe", 0.5)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.cell.w.weight, model.cell.w.weight)


class NoInverse(nn.Module):
    def forward(self, weight):
        return 2 * weight


def no_inverse(cell):
    parametrize.register_parametrization(cell.v, "weight", NoInverse())


def hooked(cell):
    nn.utils.weight_norm(cell.v)


@pytest.mark.parametrize(
    ("prepare", "arguments", "words"),
    [
        (None, ("orthogonl",), "did you mean 'orthogonal'"),
        (None, ("goe", -1.0), "not negative"),
        (None, ("goe", 1.0, ["*w*", "*x*"]), r"matches '\*x\*'; there are: cell.w.weight"),
        (no_inverse, ("goe", 1.0), "cell.v.weight cannot be set"),
        (hooked, ("goe", 1.0), "cell.v.weight is computed"),
        (lambda cell: weight_norm(cell.v), ("goe", 0.0), "take a scale above 0"),
    ],
    ids=["name", "scale", "pattern", "no inverse", "hook", "zero"],
)
def test_all_or_nothing(prepare, arguments, words):
    cell = Cell(v=nn.Linear(6, 6))
    if prepare is not None:
        with pytest.warns(FutureWarning) if prepare is hooked else torch.no_grad():
            prepare(cell)
    if prepare is hooked:
        with pytest.warns(UserWarning):
            model = eq.DEQ(cell)
    else:
        model = eq.DEQ(cell)
    before = snapshot(model)
    ensemble, scale, *layers = (*arguments, 1.0)[:2] + arguments[2:]
    with pytest.raises(ValueError, match=words):
        initialize(model, ensemble, scale, layers=layers[0] if layers else None)
    assert same(model, before)


def test_an_ensemble_that_no_weight_can_be_of():
    cell = eq.DEQ(nn.Conv2d(4, 4, 3, padding=1))
    before = snapshot(cell)
    with pytest.raises(ValueError, match=r"member of 'normal'.*size 1; there are: cell.weight"):
        initialize(cell, "normal")
    assert same(cell, before)


@pytest.mark.parametrize("width", [6, (6, 9)], ids=["square", "one that is Gaussian"])
def test_an_option_of_another_ensemble(width):
    model = eq.DEQ(Cell() if width == 6 else Cell(wide=nn.Linear(*width)))
    before = snapshot(model)
    with pytest.raises(TypeError, match="'goe' has no option 'spectrum'; it takes none"):
        initialize(model, "goe", spectrum=[1, 2])
    with pytest.raises(TypeError, match="'normal' has no option 'eigenvalues'; it takes spectrum"):
        initialize(model, "normal", eigenvalues=[1, 2])
    assert same(model, before)


def test_a_spectrum_is_given_up_to_a_factor():
    cell = Cell()
    (row,) = initialize(cell, "normal", 0.5, spectrum=[3, 3, 3, -3, -3, -3])
    assert row.scale == 0.5 == pytest.approx(row.gain)


@pytest.mark.parametrize("dress", [lambda m: m, weight_norm, spectral_norm])
@pytest.mark.parametrize("made", [False, True], ids=["set", "made and set"])
def test_in_inference_mode(dress, made):
    with torch.inference_mode(made):
        torch.manual_seed(0)
        model = eq.DEQ(Cell())
        dress(model.cell.w)
    with torch.inference_mode():
        (row,) = initialize(model, "orthogonal", 0.5, generator=seeded())
    assert row.gain == pytest.approx(0.5, rel=0.03)
    (row,) = initialize(model, "orthogonal", 0.7, generator=seeded())
    assert row.gain == pytest.approx(0.7, rel=0.03)
    assert all(p.is_inference() == made for p in model.cell.w.parameters())
    if not made:
        model(torch.randn(2, 6)).value.sum().backward()
        assert all(p.grad is not None for p in model.cell.w.parameters())


def test_a_single_pattern_is_no_list_of_them():
    with pytest.raises(TypeError, match=r"\['\*W\*'\]"):
        initialize(nn.Linear(3, 3), "goe", layers="*W*")


def test_torchs_spectral_norm_is_refused_and_nothing_changes():
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
    before = snapshot(layer)
    with pytest.raises(ValueError, match=r"spectral_norm of equilibria\.nn"):
        initialize(layer, "orthogonal", 0.8)
    assert same(layer, before)
