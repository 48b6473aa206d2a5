"""Probes of a start against dense linear algebra and against the formulas of linear networks."""

import json
import math

import pytest
import torch
from torch import nn

import equilibria as eq
from applications import needs
from equilibria.nn import weight_norm
from equilibria.nn.init import ENSEMBLES, Maps, initialize
from equilibria.run import models
from equilibria.stability import over_draws, probe_start


class Linear(nn.Module):
    """f(z; x) = W z + x."""

    def __init__(self, width, ensemble="gaussian", V=0.3, seed=0):
        super().__init__()
        self.w = nn.Linear(width, width, bias=False, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        initialize(self, ensemble, math.sqrt(V), generator=generator)

    def forward(self, z, x):
        return self.w(z) + x


class Tanh(nn.Module):
    """f(z; x) = tanh(W z + U x + b)."""

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Linear(width, width, dtype=torch.float64)
        self.u = nn.Linear(width, width, dtype=torch.float64)

    def forward(self, z, x):
        return torch.tanh(self.w(z) + self.u(x))


def batch(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def layer_of(cell, **keywords):
    return eq.DEQ(cell, solver=eq.Anderson(max_evals=200), **keywords)


def traces(jacobians):
    """Means over the samples of tr[M^T M] and 2 tr[(M^T M)^2]."""
    second, fourth = [], []
    for jacobian in jacobians:
        n = len(jacobian)
        m = torch.linalg.inv(torch.eye(n, dtype=torch.float64) - jacobian)
        second.append((m.T @ m).trace() / n)
        fourth.append(2 * (m.T @ m @ m.T @ m).trace() / n)
    return torch.stack(second).mean().item(), torch.stack(fourth).mean().item()


def within(estimate, exact, errors=4.0):
    return abs(estimate.value - exact) <= errors * estimate.error


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_a_linear_network_has_the_numbers_of_its_matrix(ensemble):
    cell = Linear(40, ensemble, 0.12)
    weight, x = cell.w.weight.detach(), batch(3, 40)
    probe = probe_start(layer_of(cell), x, probes=16, rtol=1e-8)
    assert probe.samples == probe.solved == probe.length_variance.used == 3
    second, fourth = traces([weight])
    assert within(probe.second_moment, second) and within(probe.length_variance, fourth)
    assert 0 < probe.length_variance.error < 0.2 * fourth
    radius = torch.linalg.eigvals(weight).abs().max().item()
    assert probe.radius == max(probe.radii) == pytest.approx(radius, rel=0.06)
    z = torch.linalg.solve(torch.eye(40, dtype=torch.float64) - weight, x.T).T
    assert probe.state == pytest.approx(z.square().mean().item(), rel=1e-6)
    (row,) = probe.weights
    assert row.path == "cell.w.weight"
    assert row.mean_square == pytest.approx((z @ weight.T).square().mean().item(), rel=1e-6)
    image = torch.zeros_like(x)
    for residual in probe.residuals:
        z, image = torch.zeros_like(x), x
        for _ in range(residual.step):
            z, image = image, image @ weight.T + x
        change = (image - z).square().mean(1).sqrt()
        assert residual.absolute == pytest.approx(change.median().item(), rel=1e-6)
        relative = change / image.square().mean(1).sqrt()
        assert residual.relative == pytest.approx(relative.median().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("ensemble", "V", "expected"),
    [
        ("gaussian", 0.3, 2 / 0.7**4),
        ("orthogonal", 0.4, 2 * 1.4 / 0.6**3),
        ("goe", 0.1, 2 * 0.6**-2.5),
    ],
)
def test_the_length_variance_is_that_of_theory(ensemble, V, expected):
    # papers: Agarwala and Schoenholz 2022, eq. 18, 19, 20. The limit is that of infinite width.
    def probe(seed):
        layer = layer_of(Linear(250, ensemble, V, seed))
        return probe_start(layer, batch(1, 250, seed=seed), probes=4, steps=(), rtol=1e-4)

    found = over_draws(probe, 4)
    assert found["length_variance"].median == pytest.approx(expected, rel=0.1)
    assert found["length_variance"].missing == 0


def test_a_cell_that_is_not_linear_has_each_sample_its_own_jacobian():
    cell = Tanh(20)
    x = batch(4, 20)
    layer = layer_of(cell)
    probe = probe_start(layer, x, probes=20, rtol=1e-8)
    with torch.no_grad():
        z = layer(x).value
    slope = 1 - z.square()
    jacobians = slope[:, :, None] * cell.w.weight.detach()
    second, fourth = traces(jacobians)
    assert within(probe.second_moment, second) and within(probe.length_variance, fourth)
    radii = torch.linalg.eigvals(jacobians).abs().amax(1)
    assert list(probe.radii) == pytest.approx(radii.tolist(), rel=0.06)
    # U is applied to the input alone and left out, and so is the bias.
    (row,) = probe.weights
    expected = (z @ cell.w.weight.detach().T).square().mean().item()
    assert row.mean_square == pytest.approx(expected, rel=1e-3)


def test_the_error_falls_with_the_probes():
    layer, x = layer_of(Linear(40)), batch(1, 40)
    errors = [
        probe_start(layer, x, probes=n, steps=(), seed=1).length_variance.error for n in (4, 32)
    ]
    assert errors[1] < 0.6 * errors[0]
    again = probe_start(layer, x, probes=4, steps=(), seed=1)
    assert again.length_variance.error == errors[0]
    one = probe_start(layer, x, probes=1, steps=()).length_variance
    assert math.isfinite(one.value) and math.isnan(one.error)


class Parts(nn.Module):
    """Weights that the cell multiplies by itself, in part, normalised or as images."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qk = nn.Linear(4, 8, dtype=torch.float64)
        self.free = nn.Parameter(0.1 * torch.randn(4, 4, dtype=torch.float64))
        self.conv = nn.Conv1d(2, 2, 3, padding=1, dtype=torch.float64)
        self.unused = nn.Linear(4, 4, dtype=torch.float64)
        weight_norm(self.qk)
        self.maps = {"free": Maps()}

    def forward(self, z, x):
        q = torch.addmm(x, z, self.qk.weight[:4].t())
        k = nn.functional.linear(z, self.qk.weight[4:])
        image = self.conv(z.view(-1, 2, 2)).flatten(1)
        return 0.3 * torch.tanh(q * k + z @ self.free + image)


def test_products_are_seen_however_they_are_made():
    cell, x = Parts(), batch(5, 4)
    layer = layer_of(cell)
    rows = {w.path: w.mean_square for w in probe_start(layer, x, probes=0).weights}
    with torch.no_grad():
        z = layer(x).value
        both = z @ cell.qk.weight.T
        image = nn.functional.conv1d(z.view(-1, 2, 2), cell.conv.weight, padding=1)
        expected = {
            "cell.qk.weight": both.square().mean().item(),
            "cell.free": (z @ cell.free).square().mean().item(),
            "cell.conv.weight": image.square().mean().item(),
        }
    assert math.isnan(rows.pop("cell.unused.weight"))
    assert rows == pytest.approx(expected, rel=1e-3)


def test_torchs_attention_is_seen_too():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, z, x):
            return 0.5 * torch.tanh(self.attention(z, z, z)[0] + x)

    probe = probe_start(layer_of(Cell()), batch(2, 3, 8, dtype=torch.float32), probes=2)
    assert [row.path for row in probe.weights] == [
        "cell.attention.in_proj_weight",
        "cell.attention.out_proj.weight",
    ]
    assert all(row.mean_square > 0 for row in probe.weights)
    assert math.isfinite(probe.length_variance.value)


def test_samples_without_a_fixed_point_are_left_out():
    def f(z, x):
        return torch.where(x[:, :1] > 0, 0.5 * z + x, z + 1)

    class Half(nn.Module):
        def forward(self, z, x):
            return f(z, x)

    x = batch(4, 5)
    x[:, 0] = torch.tensor([1.0, -1.0, 1.0, 1.0])
    probe = probe_start(eq.DEQ(Half(), solver=eq.Picard()), x, probes=3, steps=(3,))
    assert (probe.samples, probe.solved) == (4, 3) and probe.length_variance.used == 3
    assert math.isnan(probe.radii[1]) and probe.radius == pytest.approx(0.5)
    assert probe.second_moment.value == pytest.approx(4) and probe.weights == ()
    assert probe.state == pytest.approx((2 * x[[0, 2, 3]]).square().mean().item(), rel=1e-4)
    alone = probe_start(eq.DEQ(Half(), solver=eq.Picard()), x[1:2], probes=3)
    assert alone.solved == 0 and math.isnan(alone.radius) and math.isnan(alone.state)
    assert alone.length_variance.used == 0 and alone.residuals[0].absolute == pytest.approx(1)
    assert json.loads(alone.json())["state"] is None


def test_an_iteration_that_explodes_has_no_residual():
    layer = eq.DEQ(Linear(8, "orthogonal", 1e12), solver=eq.Broyden(max_evals=100))
    probe = probe_start(layer, batch(2, 8), steps=(60,), probes=0)
    (residual,) = probe.residuals
    assert residual.absolute == math.inf == residual.relative


@needs("language")
def test_a_model_of_the_zoo_and_nothing_changed():
    torch.manual_seed(0)
    model = models.create("deq-trellisnet", vocabulary=11, width=6, hidden=4, initial="gaussian")
    initialize(model, "gaussian", 0.5)
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    tokens = torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(1))
    state = torch.get_rng_state()
    probe = probe_start(model, tokens, probes=2, steps=(1, 4))
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    numbers = probe.numbers()
    assert set(numbers) == {
        "solved",
        "state",
        "radius",
        "weights/deq.cell.gates.weight",
        "relative residual/1",
        "absolute residual/1",
        "relative residual/4",
        "absolute residual/4",
        "second_moment",
        "length_variance",
    }
    assert all(math.isfinite(value) for value in numbers.values())
    assert json.loads(probe.json())["samples"] == 2
    text = str(probe)
    assert "2 of 2 samples" in text and "after 4 plain iterations" in text and "+-" in text


def test_less_may_be_measured():
    probe = probe_start(layer_of(Linear(10)), batch(1, 10), probes=0, steps=())
    assert probe.residuals == () and probe.second_moment is None is probe.length_variance
    assert "length_variance" not in probe.numbers()
    with pytest.raises(ValueError, match="must not be negative"):
        probe_start(layer_of(Linear(10)), batch(1, 10), probes=-1)
    with pytest.raises(ValueError, match="must not be negative"):
        probe_start(layer_of(Linear(10)), batch(1, 10), steps=(-1,))


def test_a_batch_that_is_one_sample():
    probe = probe_start(layer_of(Linear(6), coupled=True), batch(3, 6), probes=2)
    assert probe.samples == 1 and len(probe.radii) == 1 and probe.length_variance.used == 1


@pytest.mark.parametrize("made", [False, True], ids=["called", "made and called"])
def test_inference_mode_does_not_matter(made):
    expected = probe_start(layer_of(Tanh(12)), batch(2, 12), probes=2)
    with torch.inference_mode(made):
        layer, x = layer_of(Tanh(12)), batch(2, 12)
    with torch.inference_mode():
        assert probe_start(layer, x, probes=2) == expected
        assert torch.is_inference_mode_enabled()
    assert expected.radius > 0.1 and expected.length_variance.value > 2.01


def test_autocast_does_not_matter():
    cell = Tanh(12).float()
    x = batch(2, 12, dtype=torch.float32)
    expected = probe_start(layer_of(cell), x, probes=2)
    with torch.autocast("cpu", torch.bfloat16):
        assert probe_start(layer_of(cell), x, probes=2) == expected
        assert torch.is_autocast_enabled("cpu")
    assert expected.solved == 2


def test_weights_that_are_zero_are_applied_nevertheless():
    class Deep(nn.Module):
        """f(z; x) = A tanh(B z + U x + b), as it begins where B = 0."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            for name in "abu":
                setattr(self, name, nn.Linear(6, 6, dtype=torch.float64))
            nn.init.zeros_(self.b.weight)

        def forward(self, z, x):
            return self.a(torch.tanh(self.b(z) + self.u(x)))

    cell, x = Deep(), batch(2, 6)
    rows = {row.path: row.mean_square for row in probe_start(layer_of(cell), x, probes=0).weights}
    assert set(rows) == {"cell.a.weight", "cell.b.weight"}
    assert rows["cell.b.weight"] == 0.0 and rows["cell.a.weight"] > 0
    assert not cell.b.weight.any()


def test_fused_attention_in_the_cell():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, z, x):
            gathered, _ = self.attention(z, z, z, need_weights=False)
            return torch.tanh(gathered + x)

    torch.manual_seed(0)
    found = probe_start(eq.DEQ(Attends()), torch.randn(3, 5, 8), probes=2, steps=())
    assert found.solved == 3
    assert found.length_variance.value >= 2
