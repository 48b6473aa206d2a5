"""Optical flow: sizes, trainings and residuals, on tiny networks."""

import pytest
import torch
import yaml
from rich.console import Console

from equilibria.data.flow import FlowSet, Pair
from equilibria.experiments import pages, runner
from equilibria.experiments.studies.flow import _errors, _networks, pairs, sizes
from equilibria.experiments.training import Store, Training
from equilibria.train import recipe as recipes

SIZE = {"encoder": "small", "stages": [8, 8, 8], "features": 16, "levels": 1, "radius": 1}
TASK = {"name": "optical_flow", "data": "layers", "size": [32, 40], "samples": 8, "test": 4}
COMMON = {
    "optimiser": {"name": "AdamW", "lr": 1e-3}, "epochs": 2, "epoch_steps": 1, "batch_size": 2,
    "eval_batch_size": 4, "probes": 2,
}  # fmt: skip
TREES = {
    _networks.RAFT: {"model": {"name": "raft", "hidden": 8, "steps": 2, **SIZE}},
    _networks.THESIS: {
        "model": {"name": "deq-raft", "hidden": 8, **SIZE},
        "solver": {"name": "Anderson", "rtol": [1e-2, 1e-3], "max_evals": 6},
        "adjoint": {"name": "JacobianFree"},
        "correction": {"name": "FixedPointCorrection", "count": 1, "gamma": 0.8},
    },
}


def cells(view, data):
    grid = view.render(data)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


def pair():
    """A scene that moves by a whole number of pixels."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randint(0, 255, (3, 64, 84), generator=generator, dtype=torch.uint8)
    flow = torch.tensor([4.0, 0.0])[:, None, None].expand(2, 64, 80).contiguous()
    valid = torch.ones(64, 80, dtype=torch.bool)
    valid[:, :8] = False
    return Pair(wide[:, :, 4:], wide[:, :, :80], flow, valid)


class Scenes:
    def __len__(self):
        return 2

    def pair(self, place):
        return pair()


@pytest.fixture
def data(monkeypatch, tmp_path):
    """The rows of flow/pairs of one seed."""
    files = {}
    for name, tree in TREES.items():
        files[name] = tmp_path / f"{name}.yaml"
        tree = {"description": "tiny", "task": TASK, **tree, **COMMON}
        files[name].write_text(yaml.safe_dump(tree))

    def training_of(network, seed, scale="cpu"):
        recipe = recipes.load(str(files[network]), ["--seed", str(seed)])
        return Training(recipe=recipe, minutes=0.1)

    monkeypatch.setattr(pairs, "training_of", training_of)
    monkeypatch.setattr(pairs, "NETWORKS", {name: _networks.NETWORKS[name] for name in TREES})
    monkeypatch.setattr(pairs, "SEEDS", (0,))
    shown = FlowSet(title="scenes", train=None, test=Scenes(), checksum="")
    monkeypatch.setattr(_errors, "load", lambda *a, **k: shown)
    store = Store(tmp_path / "runs", Console(quiet=True))
    done = runner.execute(
        pairs.STUDY, path=tmp_path / "rows.csv", store=store, console=store.console
    )
    assert not done.failed, done.missing
    found = runner.collect(pairs.STUDY, tmp_path / "rows.csv")
    pages.picture(pages.rendered(pairs.STUDY, found), tmp_path / "figure.svg")
    return found


def test_networks_are_trained_and_measured(data):
    generated, correlation, starts, scenes, published, _ = pairs.STUDY.views
    rows = {row["network"]: row for row in cells(generated, data)}
    for name in TREES:
        assert rows[name]["seeds"] == 1 and rows[name]["of zero flow"] > 0
        assert float(rows[name]["end-point error, px"]) > 0
    residuals = data.series("residual", on="generated")
    assert set(residuals["evals"]) == {12, 18}
    assert len(residuals) == 2 * 4 and set(residuals["network"]) == {_networks.THESIS}
    assert (residuals["residual"] > 0).all() and (residuals["epe"] > 0).all()
    shown = cells(correlation, data)
    assert shown[0]["Pearson correlation"] == 0.86 and len(shown) == 3
    assert 0 <= cells(starts, data)[0]["converged from zero, truth and noise, %"] <= 100
    ratios = cells(scenes, data)
    assert [row["network"] for row in ratios] == list(TREES)
    moved = data.series("motion", on="Sintel")
    # Half of four pixels to the right, on pixels of half the size.
    assert (moved["motion"] == 4).all() and moved["zero"].map(lambda x: abs(x - 2) < 1e-5).all()
    assert len(cells(published, data)) == 14


def test_only_what_a_row_names_is_changed():
    base = _networks.training_of(_networks.THESIS, 1).recipe
    bare = _networks.training_of("DEQ-RAFT, no correction", 1).recipe
    assert base.correction is not None and bare.correction is None
    assert (bare.model, bare.task, bare.adjoint) == (base.model, base.task, base.adjoint)
    raft = _networks.training_of(_networks.RAFT, 1).recipe
    assert (raft.optimiser, raft.schedule, raft.epochs) == (
        base.optimiser, base.schedule, base.epochs,
    )  # fmt: skip
    assert raft.solver is None and raft.model.hidden == base.model.hidden


def test_counts_are_those_of_the_released_code(tmp_path):
    store = Store(tmp_path / "runs", Console(quiet=True))
    path = tmp_path / "sizes.csv"
    done = runner.execute(sizes.STUDY, path=path, store=store, console=store.console)
    assert not done.failed
    rows = cells(sizes.STUDY.views[0], runner.collect(sizes.STUDY, path))
    assert all(row["ours"] == row["released code"] for row in rows)
    (base,) = (row for row in rows if row["network"] == "DEQ-RAFT-B")
    assert base["and of weight normalisation"] == 1792
