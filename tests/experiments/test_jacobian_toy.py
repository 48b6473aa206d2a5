"""The one-dimensional network and the scalar maps: their equations, and what is shown of them."""

import math

import pytest
import torch

from equilibria.experiments import draw
from equilibria.experiments.case import Done
from equilibria.experiments.experiment import NOT_RUN
from equilibria.experiments.jacobian import slope, toy, toy_model
from equilibria.experiments.jacobian.toy_model import Setting, ToyCell
from equilibria.experiments.registry import EXPERIMENTS
from equilibria.experiments.runner import publish
from equilibria.solve import Anderson

SHORT = Setting(words="short", initial=0.15, injected=1.0, rate=5e-3, epochs=1, limit=20, clip=1.0)


def made(networks=1, width=7, initial=0.3):
    cell = ToyCell(networks, width)
    setting = Setting(words="", initial=initial, injected=1.0, rate=0.0, epochs=1, limit=1)
    cell.initialise(setting, [torch.Generator().manual_seed(k) for k in range(networks)])
    return cell


@pytest.mark.parametrize("x", [-1.7, 0.0, 1.3])
def test_the_target_is_the_formula(x):
    expected = 3 / 2 * x**3 + x**2 - 5 * x + 2 * math.sin(x) - 3
    assert float(toy_model.target(torch.tensor(x, dtype=torch.float64))) == pytest.approx(expected)


def test_samples_are_h_with_noise():
    generators = [torch.Generator().manual_seed(k) for k in (0, 1)]
    training, validation = toy_model.draw_samples(generators)
    assert training.x.shape == (2, 4096) and validation.y.shape == (2, 1000)
    assert -2 <= float(training.x.min()) < -1.99 and 1.99 < float(training.x.max()) <= 2
    noise = training.y - toy_model.target(training.x)
    assert float(noise.std()) == pytest.approx(0.05, rel=0.05)
    assert not torch.equal(training.x[0], training.x[1])


def test_the_cell_is_the_formula_and_its_networks_do_not_mix():
    cell = made(3)
    z, x = torch.linspace(-2, 2, 12).reshape(-1, 1), torch.linspace(1, -1, 12).reshape(-1, 1)
    value = cell(z, x).detach()
    for row in range(12):
        network = row // 4
        w1, w2, u, b = (getattr(cell, n)[network] for n in ("inner", "outer", "inject", "bias"))
        expected = w2 @ torch.relu(w1 * z[row] + u * x[row] + b)
        assert float(value[row]) == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-6)
    alone = ToyCell.of(cell.weights(1))
    assert torch.allclose(alone(z[4:8], x[4:8]), value[4:8], atol=1e-6)
    assert sum(weight.numel() for weight in ToyCell(1).parameters()) == 200


def test_the_slope_is_that_of_the_formula():
    cell = made(1)
    z, x = torch.linspace(-2, 2, 9).reshape(-1, 1), torch.full((9, 1), 0.4)
    active = (z * cell.inner[0] + x * cell.inject[0] + cell.bias[0] > 0).float()
    expected = (active * cell.inner[0] * cell.outer[0]).sum(1, keepdim=True).detach()
    assert torch.allclose(toy_model.slope(cell, z, x), expected, atol=1e-6)


def test_a_network_trains_as_it_would_alone(monkeypatch):
    monkeypatch.setattr(toy_model, "TRAINING", 1024)
    together, _, errors = toy_model.train(SHORT, 0.0, [3, 5])
    alone, validation, single = toy_model.train(SHORT, 0.0, [5])
    for name in toy_model.NAMES:
        pair = getattr(together, name)[1], getattr(alone, name)[0]
        assert torch.allclose(*pair, atol=1e-3), name
    assert errors[0][1] == pytest.approx(single[0][0], rel=1e-2)
    (figures,) = toy_model.judged(alone, validation, SHORT.limit)
    spread = float(validation.y.var())
    assert figures["mse"] < 2 * spread and figures["anderson_converged"] > 0.9


def test_the_penalty_flattens(monkeypatch):
    monkeypatch.setattr(toy_model, "TRAINING", 2048)
    steep, validation, _ = toy_model.train(SHORT, 0.0, [0])
    flat, _, _ = toy_model.train(SHORT, 100.0, [0])
    (without,), (with_it,) = (
        toy_model.judged(cell, validation, SHORT.limit) for cell in (steep, flat)
    )
    assert with_it["slope"] < 0.7 * without["slope"]


def test_the_zigzag_is_plain_iteration():
    cell = made(1, initial=0.2)
    across, up = toy.cobweb(cell, 0.3, 40)
    states = across[1::2]
    value = 0.0
    for state in states[:5]:
        assert state == pytest.approx(value, abs=1e-6)
        value = float(cell(torch.tensor([[value]]), torch.tensor([[0.3]])))
    fixed = toy_model.solve(cell, torch.tensor([[0.3]]), Anderson(rtol=1e-6)).value
    assert up[-1] == pytest.approx(float(fixed), abs=1e-4)


def canned(slope_, plain, mse=0.003):
    network = {
        "mse": mse, "mse_solved": mse, "slope": slope_, "plain": plain, "plain_converged": 1.0,
        "anderson": 3.0, "anderson_converged": 1.0,
    }  # fmt: skip
    return Done(
        {
            "networks": [{"seed": seed, **network} for seed in toy.SEEDS],
            "weights": made().weights(0),
        },
        {},
    )


@pytest.mark.parametrize(
    ("steep", "error", "verdict"), [(0.5, 0.003, "yes"), (0.1, 0.003, "no"), (0.5, 0.01, "no")]
)
def test_what_is_asked_of_the_toy_is_read(steep, error, verdict, monkeypatch, tmp_path):
    monkeypatch.setattr(toy, "TILES", 4)
    done = {
        toy.key("ours", 0.0): canned(steep, 12.0),
        toy.key("ours", 2.0): canned(0.02, 3.0),
        toy.key("ours", 4.0): canned(0.01, 3.0, error),
    }
    page = toy.show(done)
    draw.draw(page.panels, tmp_path / "figure.svg")
    ours = [row for row in page.tables[0].rows if row[0] == "ours"]
    assert len(ours) == 4 and {row[-1] for row in ours} == {verdict}
    assert ours[0][3:7] == pytest.approx([steep / 0.02, steep / 0.01, 4, 4])
    assert page.tables[0].rows[0][-1] == NOT_RUN


@pytest.mark.parametrize("name", ["jacobian/toy", "jacobian/slope"])
def test_both_run_to_their_end(small, reproduce, name):
    outcome = reproduce(name)
    assert not outcome.missing, outcome.missing
    _, paths = publish(EXPERIMENTS[name], outcome, small / "out", "typed")
    assert "not run" not in paths[1].read_text()


# --- Figure 4 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", slope.CURVES)
def test_a_curve_has_the_slope_it_says_and_one_fixed_point(name):
    curve = slope.CURVES[name]
    z = torch.tensor(curve.fixed, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(curve(z), z)
    assert float(curve(z)) == curve.fixed and float(found) == pytest.approx(curve.slope)
    grid = torch.linspace(-5, 6, 10_000, dtype=torch.float64)
    signs = (curve(grid) - grid).sign()
    assert int((signs[1:] != signs[:-1]).sum()) == 1


@pytest.mark.parametrize("radius", slope.RADII)
def test_random_maps_have_the_radius_and_a_fixed_point(radius):
    matrices = slope.symmetric(5, radius, 20)
    values = torch.linalg.eigvalsh(matrices)
    assert torch.allclose(values.abs().amax(1), torch.tensor(radius, dtype=torch.float64))
    assert float((1 - values).abs().min()) > 0.05


def test_above_one_iteration_fails_and_quasi_newton_methods_do_not(reproduce):
    done = reproduce("jacobian/slope").done
    for key, each in done.items():
        above = "above" in key or key.endswith(("-1.1", "-2"))
        assert (each.value["plain"]["converged"] == 1) == (not above), key
        assert each.value["broyden"]["converged"] == each.value["newton"]["converged"] == 1, key
        assert each.value["broyden"]["error"] < 1e-4
