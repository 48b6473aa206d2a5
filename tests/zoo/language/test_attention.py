"""The cells compute what the papers' formulas say, one time and one head after the other."""

import math

import pytest
import torch

from equilibria.solve import Shared
from equilibria.zoo.language.model.cell import initialize, scale_of
from equilibria.zoo.language.model.transformer import (
    RelativeAttention,
    TransformerCell,
    TransformerConfig,
    sinusoids,
)
from equilibria.zoo.language.model.trellis import TrellisCell, TrellisConfig

BATCH, TIME, WIDTH, HEADS, SIZE = 2, 5, 6, 3, 4


def operands(cell, u, memory):
    return [x.value if isinstance(x, Shared) else x for x in cell.inject(u, memory)]


def attention_of(layer, x, u, past, times):
    """s_ij = ((q_i + a) k_j + (q_i + b) W_r r_(i-j)) / sqrt(size), by loops."""
    parts = [
        part.unflatten(-1, (HEADS, SIZE)) for part in (x @ layer.qkv.weight.T + u).chunk(3, -1)
    ]
    q, k, v = parts
    if times:
        k_past, v_past = (p.unflatten(-1, (HEADS, SIZE)) for p in past.chunk(2, -1))
        k, v = torch.cat([k_past, k], 1), torch.cat([v_past, v], 1)
    out = torch.zeros(BATCH, TIME, HEADS, SIZE, dtype=x.dtype)
    for b in range(BATCH):
        for i in range(TIME):
            for h in range(HEADS):
                seen = [
                    j
                    for j in range(times + i + 1)
                    if layer.window is None or times + i - j < layer.window
                ]
                scores = []
                for j in seen:
                    distance = torch.tensor([times + i - j], dtype=x.dtype)
                    r = layer.positions(sinusoids(distance, WIDTH)).view(HEADS, SIZE)[h]
                    content = (q[b, i, h] + layer.content_bias[h]) @ k[b, j, h]
                    position = (q[b, i, h] + layer.position_bias[h]) @ r
                    scores.append((content + position) / math.sqrt(SIZE))
                weights = torch.softmax(torch.stack(scores), 0)
                out[b, i, h] = weights @ v[b, seen, h]
    return layer.out(out.flatten(2))


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("times", [0, 1, 4])
def test_attention_is_that_of_transformer_xl(times, window):
    torch.manual_seed(0)
    layer = RelativeAttention(WIDTH, HEADS, SIZE, window=window).double()
    with torch.no_grad():
        layer.content_bias.normal_()
        layer.position_bias.normal_()
    x = torch.randn(BATCH, TIME, WIDTH).double()
    u = torch.randn(BATCH, TIME, 3 * HEADS * SIZE).double()
    states = torch.randn(BATCH, times, WIDTH).double()
    injected = torch.randn(BATCH, times, 2 * HEADS * SIZE).double()
    past = layer.past(states, injected)
    expected_past = states @ layer.qkv.weight[HEADS * SIZE :].T + injected
    torch.testing.assert_close(past, expected_past)
    biased, table, bias = layer.prepare(u, times)
    found = layer(x, biased, past, table, bias)
    torch.testing.assert_close(found, attention_of(layer, x, u, past, times))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_transformer_cell_is_its_formula(pre_norm, direct):
    torch.manual_seed(1)
    config = TransformerConfig
    kept = {"width": WIDTH, "heads": HEADS, "head_width": SIZE, "inner": 7, "scale": 0.5}
    cell = TransformerCell(
        _concrete(config)(**kept, pre_norm=pre_norm, direct=direct, affine=True)
    ).double()
    with torch.no_grad():
        for norm in (cell.norm, cell.attention_norm):
            norm.weight.normal_()
            norm.bias.normal_()
    z, u = torch.randn(BATCH, TIME, WIDTH).double(), torch.randn(BATCH, TIME, cell.units).double()
    memory = {
        "z": torch.randn(BATCH, 3, WIDTH).double(),
        "u": torch.randn(BATCH, 3, 2 * HEADS * SIZE).double(),
    }
    norm = cell.norm if pre_norm else (lambda x: x)
    past = norm(memory["z"]) @ cell.attention.qkv.weight[HEADS * SIZE :].T + memory["u"]
    qkv, fourth = u.split([3 * HEADS * SIZE, cell.units - 3 * HEADS * SIZE], -1)
    gathered = attention_of(cell.attention, norm(z), qkv, past, 3)
    a = cell.attention_norm(z + gathered + (fourth if direct else 0.0))
    out = a + cell.contract(torch.relu(cell.expand(a)))
    expected = out if pre_norm else cell.norm(out)
    torch.testing.assert_close(cell(z, *operands(cell, u, memory)), expected)


@pytest.mark.parametrize(("kernel", "dilation"), [(2, 1), (2, 3), (3, 1), (3, 2)])
def test_the_trellis_cell_is_its_formula(kernel, dilation):
    torch.manual_seed(2)
    config = _concrete(TrellisConfig)(
        width=2, hidden=3, kernel=kernel, dilation=dilation, scale=0.5
    )
    cell = TrellisCell(config).double()
    wide, span = 5, (kernel - 1) * dilation
    c, h = torch.randn(2, BATCH, TIME, wide).double().unbind(0)
    u = torch.randn(BATCH, TIME, 4 * wide).double()
    before = {key: torch.randn(BATCH, span, wide).double() for key in "ch"}
    long_c, long_h = (torch.cat([before[k], x], 1) for k, x in zip("ch", (c, h), strict=True))
    found_c, found_h = cell((c, h), *operands(cell, u, before))
    taps = cell.gates.weight.chunk(kernel, 1)
    for t in range(TIME):
        gates = u[:, t].clone()
        for j, tap in enumerate(taps):
            gates += long_h[:, t + j * dilation] @ tap.T
        i, f, o, g = gates.chunk(4, -1)
        new = f.sigmoid() * long_c[:, t + span - dilation] + i.sigmoid() * g.tanh()
        torch.testing.assert_close(found_c[:, t], new)
        torch.testing.assert_close(found_h[:, t], o.sigmoid() * new.tanh())
    torch.testing.assert_close(cell.read((c, h)), h[..., 3:])


@pytest.mark.parametrize(
    ("initial", "scale"), [("normal", None), ("gaussian", 2.0), ("orthogonal", 0.7), ("goe", None)]
)
def test_every_map_of_a_weight_is_a_member_of_the_ensemble(initial, scale):
    torch.manual_seed(3)
    linear = torch.nn.Linear(2 * 64, 3 * 64)
    scale = scale_of(initial, scale)
    initialize(linear, initial, scale, rows=[64] * 3, columns=2)
    assert not linear.bias.any()
    for row in linear.weight.detach().chunk(3, 0):
        for tile in row.chunk(2, 1):
            if initial == "normal":
                assert float(tile.std()) == pytest.approx(0.01, rel=0.1)
            elif initial == "gaussian":
                assert float(tile.std()) == pytest.approx(2.0 / 8, rel=0.1)
            elif initial == "orthogonal":
                torch.testing.assert_close(tile @ tile.T, 0.49 * torch.eye(64), atol=1e-5, rtol=0)
            else:
                torch.testing.assert_close(tile, tile.T)
                assert float(torch.linalg.matrix_norm(tile, 2)) == pytest.approx(1.0, rel=0.15)


def test_an_ensemble_or_scale_that_is_none_is_refused():
    names = "normal, gaussian, orthogonal, goe, antisymmetric"
    with pytest.raises(ValueError, match=f"one of {names}, got 'xavier'"):
        scale_of("xavier", None)
    with pytest.raises(ValueError, match="scale must not be negative; got -1"):
        scale_of("normal", -1.0)


def _concrete(config):
    """A config that only ever makes a cell."""
    return type(config.__name__, (config,), {"build": lambda self: None})
