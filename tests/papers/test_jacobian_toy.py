"""The one-dimensional network and the scalar maps: their equations, and what is shown of them."""

import dataclasses
import math

import pytest
import torch
from rich.console import Console

from equilibria.run.studies import pages, runner
from equilibria.run.studies.training import Store
from equilibria.run.studies.views import NOT_RUN
from papers.jacobian import maps, slope, toy, toy_network

SHORT = dataclasses.replace(toy.SETTINGS["ours"], epochs=1, limit=20, training=1024)


def cell(networks=1, width=7):
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([0.3, 0.3, 1.0, 1.0])[:, None, None]
    return toy_network.ToyCell(scales * torch.randn(4, networks, width, generator=generator))


def measured(study, folder, only=lambda point: True):
    """What `study` leaves when it is run."""
    quiet = Console(quiet=True)
    store, path = Store(folder / "runs", quiet), folder / "rows.csv"
    outcome = runner.execute(study, path=path, store=store, console=quiet, only=only)
    assert not outcome.failed, outcome.missing
    return runner.collect(study, path)


# --- the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [-1.7, 0.0, 1.3])
def test_the_target_is_the_formula(x):
    expected = 3 / 2 * x**3 + x**2 - 5 * x + 2 * math.sin(x) - 3
    found = toy_network.target(torch.tensor(x, dtype=torch.float64))
    assert float(found) == pytest.approx(expected)


def test_samples_are_h_with_noise():
    x, y = toy_network.samples([torch.Generator().manual_seed(k) for k in (0, 1)], 5096)
    assert x.shape == y.shape == (2, 5096)
    assert -2 <= float(x.min()) < -1.99 and 1.99 < float(x.max()) <= 2
    assert float((y - toy_network.target(x)).std()) == pytest.approx(0.05, rel=0.05)
    assert not torch.equal(x[0], x[1])


def test_the_cell_is_the_formula_and_its_networks_do_not_mix():
    f, z, x = cell(3), torch.linspace(-2, 2, 12), torch.linspace(1, -1, 12)
    value = f(z, x).detach()
    for row in range(12):
        w1, w2, u, b = f.weights[:, row // 4]
        expected = w2 @ torch.relu(w1 * z[row] + u * x[row] + b)
        assert float(value[row]) == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-6)
    alone = toy_network.ToyCell(f.weights[:, 1:2].detach())
    assert torch.allclose(alone(z[4:8], x[4:8]), value[4:8], atol=1e-6)


def test_the_slope_is_that_of_the_formula():
    f, z, x = cell(), torch.linspace(-2, 2, 9), torch.full((9,), 0.4)
    w1, w2, u, b = f.weights[:, 0].detach()
    active = (z[:, None] * w1 + x[:, None] * u + b > 0).float()
    assert torch.allclose(f.slope(z, x), (active * w1 * w2).sum(1), atol=1e-6)


def test_a_network_trains_as_it_would_alone():
    together, _, _ = toy_network.train(SHORT, 0.0, [3, 5])
    alone, x, y = toy_network.train(SHORT, 0.0, [5])
    assert alone.weights.numel() == 200
    assert torch.allclose(together.weights[:, 1], alone.weights[:, 0], atol=1e-3)
    (figures,) = toy_network.figures(alone, x, y, SHORT)
    assert figures["mse"] < 2 * float(y.var()) and figures["anderson_converged"] > 0.9


def test_the_penalty_flattens():
    setting = dataclasses.replace(SHORT, training=2048)
    trained = [toy_network.train(setting, gamma, [0]) for gamma in (0.0, 100.0)]
    steep, flat = (toy_network.figures(*each, setting)[0] for each in trained)
    assert flat["slope"] < 0.7 * steep["slope"]


def test_gradients_are_clipped_network_by_network():
    """Clipped far below the epsilon of Adam, they change nothing."""
    setting = dataclasses.replace(SHORT, training=128)
    start, held, free = (
        toy_network.train(dataclasses.replace(setting, **changed), 0.0, [0])[0].weights.detach()
        for changed in ({"rate": 0.0}, {"clip": 1e-12}, {"clip": math.inf})
    )
    assert float((held - start).abs().max()) < 1e-5
    assert float((free - start).abs().max()) > 1e-3


def test_the_zigzag_is_plain_iteration():
    line = maps.zigzag([0.0, 1.0, 3.0, 20.0], reach=10, label="")
    assert (line.x, line.y) == ((0, 0, 1, 1, 3, 3), (0, 1, 1, 3, 3, 20))


def test_the_study_of_the_network_runs_to_its_end(monkeypatch, tmp_path):
    short = {
        name: dataclasses.replace(each, epochs=1, training=128, validation=50)
        for name, each in toy.SETTINGS.items()
    }
    monkeypatch.setattr(toy, "SETTINGS", short)
    data = measured(toy.STUDY, tmp_path, lambda point: point.factors["gamma"] != 1.0)
    page = pages.render(toy.STUDY, data)
    pages.picture(page, tmp_path / "figure.svg")
    assert "not run" not in (tmp_path / "figure.svg").read_text()
    ratios, figures = page.grids
    assert len(ratios.rows) == 2 * (len(toy.SEEDS) + 1)
    of = {
        (r["gamma"], r["seed"]): r["slope"]
        for _, r in data.series("mse", setting="ours").iterrows()
    }
    assert float(ratios.rows[4][3]) == pytest.approx(of[0, 0] / of[2, 0])
    assert float(ratios.rows[-1][4]) == pytest.approx(
        sum(of[0, seed] for seed in toy.SEEDS) / sum(of[4, seed] for seed in toy.SEEDS)
    )
    assert sum(row[3] == NOT_RUN for row in figures.rows) == 2  # gamma 1 of either setting
    assert len(data.series("unit", setting="ours", gamma=2.0)) == 50


# --- Figure 4 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", maps.CURVES.values(), ids=lambda curve: f"{curve.slope:g}")
def test_a_curve_has_the_slope_it_says_and_one_fixed_point(curve):
    z = torch.tensor(maps.FIXED, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(curve(z), z)
    assert float(curve(z)) == maps.FIXED and float(found) == pytest.approx(curve.slope)
    grid = torch.linspace(-5, 6, 10_000, dtype=torch.float64)
    signs = (curve(grid) - grid).sign()
    assert int((signs[1:] != signs[:-1]).sum()) == 1


@pytest.mark.parametrize("radius", slope.RADII)
def test_random_maps_have_the_radius_and_a_fixed_point(radius):
    values = torch.linalg.eigvalsh(maps.symmetric(5, radius, 20))
    assert torch.allclose(values.abs().amax(1), torch.tensor(radius, dtype=torch.float64))
    assert float((1 - values).abs().min()) > 0.05


def test_above_one_iteration_fails_and_quasi_newton_methods_do_not(tmp_path):
    data = measured(slope.STUDY, tmp_path)
    for _, row in data.series("error").iterrows():
        above = abs(row["slope"]) > 1 or row["radius"] > 1
        if row["solver"] == "plain":
            assert (row["converged"] == 1) == (not above), row
        elif row["solver"] != "anderson":
            assert row["converged"] == 1 and row["error"] < 1e-4, row
    path = data.series("evaluation", slope=0.7, solver="plain")
    assert path["z"].tolist()[1:] == pytest.approx(path["f"].tolist()[:-1])
    page = pages.render(slope.STUDY, data)
    assert NOT_RUN not in [cell for table in page.grids for row in table.rows for cell in row]
    assert all(panel.series for panel in page.panels)
