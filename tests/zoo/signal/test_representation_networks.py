"""Networks of coordinates: sizes, what f is, its fixed point, what is refused."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from small_representation import EXACT, IMPLICIT, TIGHT, build, points

import equilibria as eq
from equilibria.zoo.signal.model import IMFNConfig

KINDS = sorted(IMPLICIT)


@pytest.mark.parametrize("name", ["imfn", "mfn"])
@pytest.mark.parametrize(
    ("layers", "width", "fourier", "more"),
    [(1, 256, 67_585, 1_536), (1, 512, 266_241, 3_072), (4, 256, 267_265, 3_840)],
)
def test_sizes_from_two_coordinates_to_one_value(name, layers, width, fourier, more):
    sine = {"imfn": "isiren", "mfn": "siren-injected"}[name]
    for model, filter_, count in (
        (name, {"filter": "fourier"}, fourier),
        (name, {"filter": "gabor"}, fourier + more),
        (sine, {}, fourier),
    ):
        with torch.device("meta"):
            network = eq.models.create(model, layers=layers, width=width, **filter_)
        assert sum(p.numel() for p in network.parameters()) == count


def test_the_size_of_siren():
    with torch.device("meta"):
        network = eq.models.create("siren")
    assert sum(p.numel() for p in network.parameters()) == 198_401


@pytest.mark.parametrize("inputs", [1, 2, 3])
@pytest.mark.parametrize("name", ["imfn", "isiren", "mfn", "siren", "siren-injected"])
def test_any_coordinates_and_values(name, inputs):
    model = eq.models.create(name, inputs=inputs, outputs=3, width=8)
    prediction = model(points(7, inputs).float())
    assert prediction.output.shape == (7, 3)
    assert len(prediction.solutions) == name.startswith("i")
    prediction.output.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("bound", [None, 0.97])
@pytest.mark.parametrize("filter_", ["fourier", "gabor"])
def test_the_equilibrium_of_an_imfn_is_a_linear_solve(filter_, bound):
    model = build(filter_, bound=bound, outputs=2, **TIGHT)
    x = points(11)
    g2, g1 = model.inject(x)
    layer = model.deq.cell.layers[0]
    weight, bias = layer.weight, layer.bias
    # z* = (I - diag(g1) W)^-1 diag(g1) (W g2 + b)
    system = torch.eye(8, dtype=torch.float64) - g1.unsqueeze(2) * weight
    expected = torch.linalg.solve(system, g1 * (g2 @ weight.T + bias))
    torch.testing.assert_close(model(x).solution.value, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("filter_", ["fourier", "gabor"])
def test_f_of_an_imfn_is_affine_in_z(filter_, layers):
    model = build(filter_, layers=layers)
    operands = model.inject(points(4))
    a, b = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    f = lambda z: model.deq.cell(z, *operands)  # noqa: E731
    torch.testing.assert_close(f(0.3 * a + 0.7 * b), 0.3 * f(a) + 0.7 * f(b))
    assert not torch.allclose(f(a), f(b))


def test_the_formulas_of_the_filters_and_layers():
    x, z = points(6), torch.randn(6, 8, dtype=torch.float64)
    gabor = build("gabor").injection.first
    phases = x @ gabor.phases.weight.T + gabor.phases.bias
    distance = (x.unsqueeze(1) - gabor.mu).square().sum(2)
    torch.testing.assert_close(gabor(x), phases.sin() * (-gabor.gamma / 2 * distance).exp())

    model = build("sine")
    first, layer = model.injection.first.phases, model.injection.layers[0]
    linear = model.deq.cell.layers[0]
    inner = z + (x @ first.weight.T + first.bias).sin()
    expected = (inner @ linear.weight.T + linear.bias + x @ layer.weight.T + layer.bias).sin()
    torch.testing.assert_close(model.deq.cell(z, *model.inject(x)), expected)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_at_zero_f_is_the_explicit_network_of_the_same_parts(kind, layers):
    model = build(kind, layers=layers, bound=0.97)
    explicit = build(kind, layers=layers, bound=0.97, explicit=True, seed=1)
    explicit.injection.load_state_dict(model.injection.state_dict())
    explicit.cell.load_state_dict(model.deq.cell.state_dict())
    explicit.head.load_state_dict(model.head.state_dict())
    x = points()
    once = model.deq.cell(torch.zeros(5, 8, dtype=torch.float64), *model.inject(x))
    torch.testing.assert_close(explicit(x).output, model.readout(once))


@pytest.mark.parametrize("kind", KINDS)
def test_only_implicit_networks_are_bounded_unasked(kind):
    assert build(kind).config.bound == 0.97
    assert build(kind, explicit=True).config.bound is None


def test_an_mfn_has_one_filter_more_than_layers():
    model = build("fourier", layers=2, explicit=True)
    x = points()
    g = model.injection(x)
    assert len(g) == 3
    h = g[0]
    for layer, filter_ in zip(model.cell.layers, g[1:], strict=True):
        h = layer(h) * filter_  # eq. 8.3
    torch.testing.assert_close(model(x).output, model.head(h))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_with_a_bound_two_starts_give_one_equilibrium(kind, layers):
    model = build(kind, layers=layers, **TIGHT)
    with torch.no_grad():
        for layer in model.deq.cell.layers:
            layer.parametrizations.weight.original.mul_(30.0)
            assert torch.linalg.matrix_norm(layer.weight, 2) <= 0.97 + 1e-12
    x = points(9)
    start = 10 * torch.randn(9, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    here, there = model(x).solution, model(x, z0=start).solution
    assert (here.status == 0).all() and (there.status == 0).all()
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_is_that_of_the_released_code(kind):
    layers, scale, width = 3, 50.0, 4096
    torch.manual_seed(0)
    name, fields = IMPLICIT[kind]
    options = {"layers": layers, "width": width, "scale": scale, "bound": None}
    model: Any = eq.models.create(name, **fields, **options)
    limit = scale / math.sqrt(layers + 1) / math.sqrt(2)
    for part in model.injection.modules():
        if isinstance(part, torch.nn.Linear):
            assert 3.1 < part.bias.abs().max() <= math.pi
            if kind != "gabor":
                assert 0.99 * limit < part.weight.abs().max() <= limit
    if kind == "gabor":
        for filter_, alpha in [(model.injection.first, 6.0), (model.injection.layers[1], 3.0)]:
            assert filter_.gamma.detach().mean() == pytest.approx(alpha / (layers + 1), rel=0.1)
            assert 0.99 < filter_.mu.abs().max() <= 1
            over = filter_.phases.weight.abs().amax(1) / filter_.gamma.detach().sqrt()
            assert 0.99 * limit < over.max() <= limit * (1 + 1e-5)
    for layer in model.deq.cell.layers:
        assert 0.99 / math.sqrt(width) < layer.weight.abs().max() <= 1 / math.sqrt(width)


@pytest.mark.parametrize("kind", KINDS)
def test_filters_keep_their_precision_under_autocast(kind):
    model = build(kind, scale=200.0, solver=eq.Picard(rtol=1e-2)).float()
    x = points(50).float()
    with torch.autocast("cpu", torch.bfloat16):
        operands = model.inject(x)
        solution = model(x).solution
    for here, there in zip(operands, model.inject(x), strict=True):
        assert torch.equal(here, there)
    assert solution.value.dtype == torch.float32 and (solution.status == 0).all()


def test_siren_is_its_formula_and_starts_as_the_released_code():
    width, omega = 512, 20.0
    torch.manual_seed(0)
    model: Any = eq.models.create("siren", inputs=3, outputs=2, width=width, omega=omega)
    x = points(7, 3).float()
    h = x
    for layer in model.sines:
        h = (omega * (h @ layer.weight.T + layer.bias)).sin()
    torch.testing.assert_close(model(x).output, h @ model.head.weight.T + model.head.bias)
    first, *others = model.sines
    assert len(others) == 3 and 0.99 < 3 * first.weight.abs().max() <= 1
    limit = math.sqrt(6 / width) / omega
    for layer in (*others, model.head):
        assert 0.99 * limit < layer.weight.abs().max() <= limit


def test_the_first_sine_of_siren_keeps_its_precision_under_autocast():
    model: Any = eq.models.create("siren", width=16)
    seen = []
    model.sines[1].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    x = points(50).float()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x).output
    model(x)
    assert torch.equal(*seen) and output.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_each_coordinate_is_solved_for_itself(kind):
    model = build(kind, **TIGHT).eval()
    x = points(12)
    with torch.no_grad():
        whole = model(x).output
        parts = torch.cat([model(part).output for part in x.split(5)])
    torch.testing.assert_close(whole, parts, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_and_a_saved_state_give_the_same(kind, tmp_path):
    model, x = build(kind, **EXACT).eval(), points()
    expected = model(x).output
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = build(kind, seed=5, **EXACT).eval()
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(copy.deepcopy(model)(x).output, expected)
    assert torch.equal(other(x).output, expected)


def test_configs_can_be_pickled():
    config = IMFNConfig(filter="gabor", inputs=None)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("imfn", {"width": 0}, "width must be positive; got 0"),
        ("imfn", {"layers": 0}, "layers must be positive; got 0"),
        ("imfn", {"inputs": 0}, "inputs must be positive, or be null; got 0"),
        ("imfn", {"scale": math.nan}, "scale must be positive, or be null; got nan"),
        ("imfn", {"bound": 0.0}, "bound must be positive, or be null; got 0.0"),
        ("imfn", {"alpha": -1.0}, "alpha must be positive; got -1.0"),
        ("imfn", {"filter": "wavelet"}, "filter must be 'fourier' or 'gabor', got 'wavelet'"),
        ("imfn", {"inputs": None}, "inputs is null, and there are no data to take it from"),
        ("imfn", {"outputs": None}, "outputs is null, and there are no data to take it from"),
        ("siren", {"omega": 0.0}, "omega must be positive"),
    ],
)
def test_impossible_fields_are_refused(name, fields, words):
    with pytest.raises(ValueError, match=words):
        eq.models.create(name, **fields)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([[0.0, 0.0]], TypeError, "expected coordinates as a tensor, got list"),
        (torch.zeros(3, 2), TypeError, "float32 and the network's weights torch.float64"),
        (torch.zeros(3, 2, dtype=torch.int64), TypeError, "torch.int64"),
        (points(3, 3), ValueError, r"expected coordinates \(batch, 2\), got the shape \(3, 3\)"),
        (points(3)[0], ValueError, r"got the shape \(2,\)"),
        (points(0), ValueError, "there is no coordinate"),
        (points(3).log(), ValueError, "of the batch is not finite: .*nan"),
    ],
)
@pytest.mark.parametrize("explicit", [False, True])
def test_what_is_no_coordinate_is_refused(x, error, words, explicit):
    with pytest.raises(error, match=words):
        build("fourier", explicit=explicit)(x)


def test_a_negative_gamma_counts_as_none():
    gabor = build("gabor").injection.first
    with torch.no_grad():
        gabor.gamma[3] = -2.0
    x = points(6)
    torch.testing.assert_close(gabor(x)[:, 3], gabor.phases(x).sin()[:, 3])
