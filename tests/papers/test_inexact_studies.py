"""Inexact gradients: trainings, cosines, Theorem 4 and costs, on tiny networks."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.models import EquilibriumModel
from equilibria.run.studies import pages, runner
from equilibria.run.studies.measures import timing
from equilibria.run.studies.measures.probes import Cosines
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Context
from equilibria.run.studies.training import Store
from equilibria.run.trainer import Trainer
from equilibria.solve import Implicit, NeumannPhantom, Phantom, estimate
from papers.inexact import common, cost, images, language, steps, synthetic
from papers.jacobian import images as jacobian_images

SIZES = {"epochs": 2, "epoch_steps": 2, "batch_size": 4, "eval_batch_size": 500, "probes": 4}
SOLVES = {
    "solver": {"name": "Anderson", "rtol": 1e-2, "max_evals": 12},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-2, "max_evals": 12}},
    "optimizer": {"name": "AdamW", "lr": 3e-3},
}
IMAGES = {
    "task": {"name": "image_classification", "data": "digits", "samples": 40, "valid": 20},
    "model": {
        "name": "mdeq", "channels": [4, 4], "head_channels": [2, 2], "final": 8, "expansion": 2,
        "groups": 2, "initial": None,
    },
    **SOLVES, **SIZES,
}  # fmt: skip
DENSE = {
    "task": {"name": "image_classification", "data": "digits", "samples": 40, "valid": 20},
    "model": {"name": "dense", "shape": [1, 8, 8], "classes": 10, "width": 6, "bound": None},
    **SOLVES, **SIZES,
}  # fmt: skip
CELL = {"name": "deq-transformer", "width": 8, "heads": 2, "inner": 16, "memory": 4, "scale": 0.2}
SYNTHETIC = {"WIDTH": 12, "BATCH": 3, "STEPS": (1, 3, 9), "DAMPINGS": (1.0, 0.5), "DRAWS": 40}


def load(folder, tree):
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"description": "tiny", **tree}))
    return recipes.load(str(path))


def context(factors, **options):
    console = Console(quiet=True)
    tasks = lambda recipe: recipe.task.load()  # noqa: E731
    return Context(factors=factors, console=console, tasks=tasks, **{"runs": {}, **options})


# --- trainings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_trainings_differ_in_the_adjoint_alone(scale):
    plain = jacobian_images.recipe_of("plain", scale, 2)
    assert isinstance(plain.adjoint, Implicit)
    for name, adjoint in common.IMAGES.items():
        recipe = common.image_training(name, scale, 2).recipe
        assert recipe == replace(plain, adjoint=adjoint or plain.adjoint)
        assert recipes.parse(recipes.dump(recipe)) == recipe
    exact, upg = (common.text_training(name, scale, 1).recipe for name in common.TEXT)
    assert upg == replace(exact, adjoint=Phantom(steps=5, damping=0.8))


@pytest.fixture
def run(monkeypatch, tmp_path, unsaved):
    """Run some points of a study on tiny networks: run(study, seeds) -> its rows."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog lay by the door\n" * 60)
    text = {"file": str(tmp_path / "text.txt"), "unit": "words", "length": 8}
    words = {"task": {"name": "language_modeling", **text}, "model": CELL, **SOLVES, **SIZES}
    paths = {}
    for name, tree in (("images", DENSE), ("lm-ptb", words)):
        paths[name] = tmp_path / f"{name}.yaml"
        paths[name].write_text(yaml.safe_dump({"description": "tiny", **tree}))
    monkeypatch.setitem(jacobian_images.BASE, "cpu", str(paths["images"]))
    monkeypatch.setattr(jacobian_images, "UNSTABLE", {})
    found = SimpleNamespace(load=lambda name, *a: recipes.load(str(paths[name]), *a))
    monkeypatch.setattr(common, "recipes", found)
    monkeypatch.setattr(timing, "ROUNDS", 1)
    store = Store(tmp_path / "runs", Console(quiet=True))

    def execute(study):
        file = tmp_path / "rows.csv"
        wanted = lambda point: point.factors["seed"] == 0  # noqa: E731
        done = runner.execute(study, path=file, store=store, console=store.console, only=wanted)
        assert not done.failed, done.missing
        data = runner.collect(study, file)
        pages.picture(pages.render(study, data), tmp_path / "figure.svg")
        return data

    return execute


def cells(view, data):
    grid = view.render(data)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


def test_networks_on_images_are_trained_probed_and_timed(run, monkeypatch):
    few = {name: common.IMAGES[name] for name in ("exact", "UPG, k = 5, damping .5")}
    for module in (common, images):
        monkeypatch.setattr(module, "IMAGES", few)
    data = run(images.STUDY)
    epochs = data.series("epoch", seed=0)
    names = [f"probe_cosine {name}" for name in common.ESTIMATORS]
    assert len(epochs) == 2 * len(few) and epochs[names].notna().all(axis=None)
    assert (epochs["probe_reference"] < 1e-4).all()
    rows = cells(images.STUDY.views[0], data)
    assert rows[0]["trained by"].startswith("published") and "93.8" in rows[0]["test accuracy, %"]
    ours = {row["trained by"]: row for row in rows}
    assert all(ours[name]["seeds"] == 1 for name in few)
    steps = {row["trained by"]: row for row in cells(images.STUDY.views[1], data)}
    assert float(steps["exact"]["times as fast as exact"]) == 1
    assert all(steps[name]["step, ms"] > 0 for name in few)


def test_language_models_are_trained_and_timed(run):
    data = run(language.STUDY)
    ours = {row["trained by"]: row for row in cells(language.STUDY.views[0], data)}
    assert all(float(ours[name]["test perplexity"]) > 1 for name in common.TEXT)
    assert data.series("faster", gradient="times")["faster"].iloc[0] == 1


def test_cosines_are_those_of_the_gradients(tmp_path):
    """Of the exact adjoint 1, of the others what autograd finds at the same solution."""
    recipe = load(tmp_path, DENSE)
    trainer = Trainer(recipe, recipe.task.load(), evaluation.accelerator("float32"))
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    adjoints = {"exact": Implicit(), "far": NeumannPhantom(steps=200), "one": Phantom(steps=1)}
    found = Cosines(adjoints)(trainer)
    assert found["reference"] < 1e-4
    for name in ("exact", "far"):
        assert found[f"cosine {name}"] == pytest.approx(1, abs=1e-4)
        assert found[f"length {name}"] == pytest.approx(1, abs=1e-2)
    assert found["cosine one"] < 0.999 and found["length one"] < 0.99
    for name, p in trainer.model.named_parameters():
        assert torch.equal(p, before[name]) and p.grad is None
    model = trainer.model
    assert isinstance(model, EquilibriumModel) and model.training
    assert isinstance(model.deq.adjoint, Implicit)


# --- random layers and Theorem 4 ------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    for name, value in SYNTHETIC.items():
        monkeypatch.setattr(synthetic, name, value)


def test_cosines_rise_with_the_steps_and_both_phantoms_agree(small):
    layers = ("spectral norm .9, inputs 1", "spectral radius .9, inputs .1")
    free = {}
    for layer in layers:
        rows = pd.DataFrame(synthetic.cosines(context({"layer": layer, "seed": 0})))
        assert float(rows["bptt"].max()) > 0.9999 and float(rows["difference"].max()) < 1e-6
        assert rows["estimator"].tolist().count("SHINE") == 2
        for damping in (1.0, 0.5):
            of = rows[(rows["damping"] == damping) & (rows["estimator"] == "NPG")]
            assert of["cosine"].is_monotonic_increasing
        free[layer] = rows[(rows["damping"] == 1) & (rows["steps"] == 1)]["cosine"].min()
    assert free[layers[1]] < free[layers[0]] < 1


def test_the_theorem_holds_up_to_the_smallest_singular_value(small):
    found = [synthetic.theorem(context({"bound": bound})) for bound in synthetic.BOUNDS]
    published, sharp, beyond = found
    assert published["counter_examples"] == sharp["counter_examples"] == 0
    assert 0 < sharp["smallest"] < 0.01 < published["smallest"]
    assert beyond["counter_examples"] == 10 and beyond["smallest"] < 0  # a quarter of the draws


def test_the_condition_is_measured_on_layers(tmp_path):
    recipe = load(tmp_path, DENSE)
    task = recipe.task.load()
    torch.manual_seed(0)
    model = task.model(recipe.model, **recipe.layer())
    run = SimpleNamespace(load=lambda: SimpleNamespace(model=model), task=task)
    rows = list(synthetic.check_condition(context({}, runs={"run": run})))
    assert [row["estimator"] for row in rows] == list(synthetic.NEUMANN)
    for row in rows:
        assert 0 <= row["met"] <= row["sharp"] <= row["safe"] <= 1
        assert row["error"] > 0 and row["kappa"] >= 1
    errors = {row["estimator"]: row["error"] for row in rows}
    assert errors["NPG, k = 20"] < errors["NPG, k = 5"] < errors["Jacobian-free"]


# --- costs ----------------------------------------------------------------------------------------


def test_upg_takes_memory_for_every_step_and_npg_for_one(tmp_path, monkeypatch):
    for name, value in {"STEPS": (1, 3, 6), "EVALS": (4, 8), "USUAL": 4}.items():
        monkeypatch.setattr(steps, name, value)
    monkeypatch.setattr(timing, "ROUNDS", 1)
    for limit in ("BLOCK", "KEPT"):  # large only beside a model as small as this
        monkeypatch.setattr(estimate, limit, 64)
    subject = context({}, reads=[load(tmp_path, IMAGES)])
    taken = list(steps.bytes_of_steps(subject))
    of = {name: [row["bytes"] for row in taken if row["gradient"] == name] for name in steps.ORDERS}
    assert len(of["exact"]) == 2
    grown = [later - earlier for earlier, later in zip(of["UPG"], of["UPG"][1:], strict=False)]
    assert grown[1] / 3 == pytest.approx(grown[0] / 2, rel=0.05) and grown[0] > 0
    assert max(of["NPG"]) < 1.05 * min(of["NPG"])
    timed = list(steps.times_of_steps(subject))
    assert timed[0]["gradient"] == "exact" and timed[0]["faster"] == timed[0]["cheaper"] == 1
    assert len(timed) == 1 + 2 * 3 and all(row["ms"] > 0 for row in timed)


def test_growth_is_the_slope_of_a_line():
    factors = [{"cost": "memory"}, {"cost": "time"}]
    mib = steps.MIB
    rows = [
        {"gradient": "exact", "evals": n, "bytes": b * mib} for n, b in ((6, 5), (18, 6), (36, 6))
    ]
    rows += [
        {"gradient": name, "steps": k, "bytes": (4 + k * grows) * mib}
        for name, grows in (("UPG", 2), ("NPG", 0))
        for k in (1, 2, 5)
    ]
    data = pd.DataFrame([{"cost": "memory", **row} for row in rows])
    exact, upg, npg = cells(cost.STUDY.views[0], Data.of(data, factors))
    assert exact["against"] == "K" and exact["largest over smallest k or K"] == pytest.approx(1.2)
    assert upg["MiB for one more"] == pytest.approx(2) and upg["R² of a line"] == pytest.approx(1)
    assert npg["MiB for one more"] == 0 and npg["largest over smallest k or K"] == 1
    assert upg["ms for one more k"] is None
