"""Optical flow: sizes, trainings and residuals, on tiny networks."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console

from equilibria.run import models
from equilibria.run import recipe as recipes
from equilibria.run.report import svg
from equilibria.run.studies import pages, runner
from equilibria.run.studies.measures import timing
from equilibria.run.studies.training import Store, Training
from equilibria.run.tasks import Batch
from equilibria.solve import Anderson
from equilibria.zoo.flow.data import FlowPair, FlowSet
from papers.flow import common, cost, pairs, reuse, sizes
from papers.flow.common import NETWORKS  # which the fixture `run` replaces
from papers.flow.common import training_of as shipped
from papers.measures.memory import step_bytes

SIZE = {"encoder": "small", "stages": [8, 8, 8], "features": 16, "levels": 1, "radius": 1}
TASK = {"name": "optical_flow", "data": "layers", "size": [32, 40], "samples": 8, "test": 4}
COMMON = {
    "optimizer": {"name": "AdamW", "lr": 1e-3}, "epochs": 1, "epoch_steps": 1, "batch_size": 2,
    "eval_batch_size": 4, "probes": 2,
}  # fmt: skip
IMPLICIT = {
    "solver": {"name": "Anderson", "rtol": [1e-2, 1e-3], "max_evals": 6},
    "adjoint": {"name": "Phantom", "steps": 1, "damping": 1.0},
    "correction": {"name": "FixedPointCorrection", "count": 1, "gamma": 0.8},
}
DEQ = {"name": "deq-raft", "hidden": 8, **SIZE}
TREES = {
    common.RAFT: {"model": {"name": "raft", "hidden": 8, "steps": 2, **SIZE}},
    common.THESIS: {"model": DEQ, **IMPLICIT},
    common.RANDOM: {"model": {**DEQ, "start_noise": 8.0}, **IMPLICIT},
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
    return FlowPair(wide[:, :, 4:], wide[:, :, :80], flow, valid)


class Scenes:
    def __len__(self):
        return 2

    def pair(self, place):
        return pair()


class Film:
    """A texture that moves by a pixel a frame."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.wide = torch.rand(3, 64, 80, generator=generator) * 255

    def __len__(self):
        return 8

    def image(self, place):
        return self.wide[:, :, place : place + 64]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a study of one seed on tiny networks: run(study) -> its rows; they share trainings."""
    folder = tmp_path_factory.mktemp("flow")
    files = {}
    for name, tree in TREES.items():
        files[name] = folder / f"{name}.yaml"
        tree = {"description": "tiny", "task": TASK, **tree, **COMMON}
        files[name].write_text(yaml.safe_dump(tree))

    def training_of(network, seed, scale="cpu"):
        recipe = recipes.load(str(files[network]), ["--seed", str(seed)])
        return Training(recipe=recipe, minutes=0.1)

    shown = FlowSet(title="scenes", train=None, test=Scenes(), checksum="")
    films = SimpleNamespace(valid=Film(0), train=Film(1))
    store = Store(folder / "runs", Console(quiet=True))

    def execute(study):
        path = folder / f"{study.title}.csv"
        done = runner.execute(study, path=path, store=store, console=store.console)
        assert not done.failed, done.missing
        found = runner.collect(study, path)
        pages.picture(pages.render(study, found), folder / "figure.svg")
        return found

    with pytest.MonkeyPatch.context() as patch:
        for module in (common, cost):
            patch.setattr(module, "training_of", training_of)
        patch.setattr(common, "SEEDS", (0,))
        patch.setattr(common, "NETWORKS", {name: common.NETWORKS[name] for name in TREES})
        patch.setattr(cost, "NAMES", tuple(TREES))
        patch.setattr(timing, "ROUNDS", 1)
        patch.setattr(common, "CUTS", 1)
        patch.setattr(common, "MAX_EVALS", 20)
        read = {"sintel": shown, "camvid": films}
        patch.setattr(common, "load", lambda name, *a, **k: read[name])
        patch.setattr(svg, "_save", lambda figure: "")
        yield execute


def test_networks_are_trained_and_measured(run):
    data = run(pairs.STUDY)
    generated, correlation, starts, scenes, published, _ = pairs.STUDY.views
    rows = {row["network"]: row for row in cells(generated, data)}
    for name in TREES:
        assert rows[name]["seeds"] == 1 and rows[name]["of zero flow"] > 0
        assert float(rows[name]["end-point error, px"]) > 0
    residuals = data.series("residual", on="generated")
    assert set(residuals["evals"]) == {12, 18}
    assert len(residuals) == 2 * 2 * 4
    assert set(residuals["network"]) == {common.THESIS, common.RANDOM}
    assert (residuals["residual"] > 0).all() and (residuals["epe"] > 0).all()
    shown = cells(correlation, data)
    assert shown[0]["residual–error correlation"] == 0.86 and len(shown) == 5
    expected = residuals[(residuals["evals"] == 12) & (residuals["network"] == common.THESIS)]
    assert shown[1]["movement–error correlation"] == pytest.approx(
        expected["epe"].corr(expected["moves"])
    )
    assert 0 <= cells(starts, data)[0]["converged from zero, truth and noise, %"] <= 100
    ratios = cells(scenes, data)
    assert [row["network"] for row in ratios] == [common.RAFT, common.THESIS]
    moved = data.series("motion", on="Sintel")
    # Half of four pixels to the right, on pixels of half the size.
    assert (moved["motion"] == 4).all() and moved["zero"].map(lambda x: abs(x - 2) < 1e-5).all()
    named = {row["network"]: row for row in cells(published, data)}
    assert len(named) == 16 and named["DEQ-RAFT-B"]["KITTI F1, %"] == 16.3
    hidden = named["DEQ-RAFT, all sets, test servers"]
    assert (hidden["Sintel clean, px"], hidden["final, px"]) == (1.82, 3.23)


def test_steps_are_measured(run):
    data = run(cost.STUDY)
    rows = {row["network"]: row for row in cells(cost.STUDY.views[0], data)}
    for row in rows.values():
        assert row["refinement, MiB"] > 0 and row["whole step, ms"] > 0
    taken = data.series("bytes").set_index("refined")["bytes"]
    for name in TREES:  # what the encoders take is left out
        recipe = common.training_of(name, 0).recipe
        task = recipe.task.load()
        model = task.model(recipe.model, **recipe.layer())
        assert taken[name] < step_bytes(model, task, task.feed(2, 0).batch(0))


def test_frames_are_solved_from_the_pair_before(run):
    data = run(reuse.STUDY)
    found = data.series("cold")
    assert found["frame"].tolist() == 2 * list(range(1, 7))
    for name in ("cold", "reuse", "flow_only"):
        assert ((found[name] >= 1) & (found[name] <= common.MAX_EVALS)).all()
    rows = cells(reuse.STUDY.views[0], data)
    assert len(rows) == 6 and rows[0]["times those from zero"] == 1
    for cut in data.series("cut_cold").to_dict("records"):
        assert cut["noticed"] and cut["cut_reuse"] == cut["cut_cold"]


@pytest.fixture
def network():
    """A tiny DEQ-RAFT, and the states that its solves are told to begin at."""
    torch.manual_seed(0)
    model = models.create("deq-raft", hidden=8, solver=Anderson(max_evals=3), **SIZE).eval()
    begun = []
    model.register_forward_pre_hook(
        lambda model, inputs, options: begun.append(options.get("z0")), with_kwargs=True
    )
    return model, begun


def of(model, data=None):
    loaded = SimpleNamespace(model=model, data=data)
    return SimpleNamespace(run=SimpleNamespace(load=lambda: loaded, data_dir=None))


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
def test_solves_start_from_zero_truth_and_noise(network):
    model, begun = network
    flow = torch.zeros(1, 2, 32, 40)
    flow[:, 0, :, :8], flow[:, 1, 8:16] = 16.0, -4.0
    images = torch.rand(2, 1, 3, 32, 40) * 255
    batch = Batch((images[0], images[1]), (flow, flow[:, 0] == flow[:, 0]))
    common.starts(of(model, SimpleNamespace(batches=lambda split, size: [batch])))
    cold, (hidden, true), (other, noise) = begun
    assert cold is None and not hidden.any() and not other.any()
    # Of pixels that are eight times as large, in units of eight pixels.
    expected = torch.zeros(1, 2, 4, 5)
    expected[:, 0, :, 0], expected[:, 1, 1] = 2.0, -0.5
    torch.testing.assert_close(true, expected)
    assert noise.shape == true.shape and 0.3 < float(noise.std() / true.std()) < 3


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
def test_flow_alone_is_a_start_without_the_hidden_state(network, monkeypatch):
    model, begun = network
    films = SimpleNamespace(valid=Film(0), train=Film(1))
    monkeypatch.setattr(common, "load", lambda *a, **k: films)
    monkeypatch.setattr(common, "MAX_EVALS", 3)
    # Nothing converges: all solves begin at zero.
    rows = list(common.frames(of(model)))
    assert len(rows) == 6 and not any(row["warm"] or row["arrived"] for row in rows)
    assert len(begun) == 7 and not any(begun)
    begun.clear()
    monkeypatch.setattr(common, "TOLERANCE", {"rtol": 0.9, "atol": 0.0})
    rows = list(common.frames(of(model)))
    assert len(rows) == 6 and all(row["warm"] and row["arrived"] for row in rows)
    assert begun[0] is None
    for cold, (hidden, flow), (none, same) in zip(
        *(begun[1 + k :: 3] for k in range(3)), strict=True
    ):
        assert cold is None and hidden.any() and not none.any()
        assert flow.any() and torch.equal(flow, same)


def test_the_gain_is_a_geometric_mean_of_scenes_that_move_little():
    rows = pd.DataFrame({"epe": [2.0, 1.0, 9.0], "zero": [1.0, 2.0, 1.0], "motion": [1, 19, 20]})
    assert common.gain(rows) == pytest.approx(1.0)


def test_only_what_a_row_names_is_changed(monkeypatch):
    monkeypatch.setattr(common, "NETWORKS", NETWORKS)
    base = shipped(common.THESIS, 1).recipe
    bare = shipped("DEQ-RAFT, no correction", 1).recipe
    assert base.correction is not None and bare.correction is None
    assert (bare.model, bare.task, bare.adjoint) == (base.model, base.task, base.adjoint)
    raft = shipped(common.RAFT, 1).recipe
    assert (raft.optimizer, raft.schedule, raft.epochs) == (
        base.optimizer, base.schedule, base.epochs,
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
