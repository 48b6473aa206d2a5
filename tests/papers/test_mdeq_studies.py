"""The studies of chapter 3 of the thesis from end to end, on 8x8 digits and tiny networks."""

import dataclasses
import itertools
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console

from equilibria.run import memory as step_memory
from equilibria.run.report import svg
from equilibria.run.studies import catalog, pages, runner
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import grid
from equilibria.run.studies.training import Store
from equilibria.zoo.vision.task.classification import ImageClassification
from papers.mdeq import common, convergence, memory, receptive, residuals, tables

RECIPE = {
    "task": {"name": "image_classification", "data": "digits", "samples": 20, "valid": 20},
    "model": {
        "name": "mdeq", "channels": [4, 4], "head_channels": [2, 2], "final": 8, "expansion": 2,
        "groups": 2, "initial": None,
    },
    "solver": {"name": "Anderson", "rtol": 1e-2, "max_evals": 12},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-2, "max_evals": 12}},
    "optimizer": {"name": "AdamW", "lr": 3e-3},
    "epochs": 1, "epoch_steps": 3, "batch_size": 4, "eval_batch_size": 500, "probes": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a study on tiny networks: run(name) -> its rows. All studies share the trainings."""
    folder = tmp_path_factory.mktemp("mdeq")
    path = folder / "images.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    store = Store(folder / "runs", Console(quiet=True))

    def execute(name, **options):
        study, file = catalog.find(name), folder / f"{name.replace('/', '-')}.csv"
        outcome = runner.execute(study, path=file, store=store, console=store.console, **options)
        assert not outcome.failed
        data = runner.collect(study, file)
        pages.picture(pages.render(study, data), folder / "figure.svg")
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(common.RECIPES, "cifar10", {"cpu": str(path)})
        patch.setitem(common.SHAPES, "cifar10", (1, 8, 8))
        images = {"cifar10": "digits"}
        for module, sizes in (
            (tables, {"SEEDS": (0,), "IMAGES": images}),
            (convergence, {"SAMPLES": 4, "BATCHES": 2, "BATCH": 2, "SIZES": (8, 16)}),
            (receptive, {"EVALS": {1: 3, 2: 2}, "STRENGTH": (1, 2), "ACROSS": 2}),
            (memory, {"DEPTHS": (2, 4)}),
            (step_memory, {"DEPTHS": (3,)}),
            (svg, {"_save": lambda figure: ""}),
        ):
            for name, value in sizes.items():
                patch.setattr(module, name, value)
        for name, solver in convergence.SOLVERS.items():
            patch.setitem(convergence.SOLVERS, name, dataclasses.replace(solver, max_evals=6))
        common._recipe.cache_clear()
        yield execute
    common._recipe.cache_clear()


def cells(table, data):
    """Rows of a table as dicts."""
    grid = table.render(data)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


def test_networks_of_one_size_are_trained_alike(run):
    recipes = {kind: common.recipe_of("cifar10", kind, "cpu") for kind in common.NAMES}
    base = recipes["mdeq"]
    for name in ("batch_size", "epochs", "task", "schedule", "clip"):
        assert {getattr(recipe, name) for recipe in recipes.values()} == {getattr(base, name)}
    assert recipes["single"].solver == base.solver and recipes["resnet"].solver is None
    aim = common.parameters("cifar10", base)
    for kind, makers in common.MAKERS.items():
        recipe = recipes[kind]
        rate = common.RATES.get(kind, 1.0) * base.optimizer.lr
        assert recipe.optimizer == dataclasses.replace(base.optimizer, lr=rate)
        miss = abs(common.parameters("cifar10", recipe) - aim)
        others = [maker(base.model, 8, n) for maker, n in itertools.product(makers, range(1, 4))]
        assert miss <= min(abs(common.parameters("cifar10", base, m) - aim) for m in others)


def test_the_table_has_all_networks_beside_the_thesis(run):
    data = run("mdeq/tables")
    assert data.points["done"].all() and len(data.points) == 5
    rows = cells(tables.ACCURACY, data)
    assert [row["network"] for row in rows if row["whose"] == "thesis"][:2] == [
        "Neural ODE",
        "augmented Neural ODE",
    ]
    mine = [row for row in rows if row["whose"] == "ours"]
    assert {row["network"] for row in mine} == set(common.NAMES.values())
    assert {row["images"] for row in mine} == {data.points["source"].iloc[0]}
    assert all(row["minutes"] > 0 and row["seeds"] == "1 of 1" for row in mine)
    assert all(row["memory of a step, MiB"] > 0 for row in mine)
    order = cells(tables.ORDER, data)
    assert order[0]["order"].startswith("MDEQ-small > single-stream DEQ > ResNet-18")
    assert len(order[1]["order"].split(" > ")) == 5


def test_the_course_of_each_resolution_and_size(run):
    data = run("mdeq/convergence")
    assert data.points["done"].all()
    resolutions, sizes = (cells(view, data) for view in convergence.STUDY.views[:2])
    assert {row["resolution"] for row in resolutions if row["network"] == "MDEQ"} == {
        "highest",
        "1/2",
        "all",
    }
    assert {row["pixels a side"] for row in sizes} == {8, 16}
    assert all("±" in row["after 5"] for row in sizes)


@pytest.mark.parametrize("make", [residuals._enlarge, residuals._mosaics])
def test_images_of_each_size_are_normalised_as_in_the_training(make):
    task = ImageClassification(data="digits", size=4, samples=20, normalize=True).load()
    trained = SimpleNamespace(task=task, data_dir=None)
    torch.testing.assert_close(make(trained, 4, 8), task.sample("test", 8).inputs)
    own = ImageClassification(data="digits").load().sample("test", 8).inputs  # 8 x 8 pixels
    larger = make(trained, 8, 8)
    assert larger.shape == own.shape
    if make is residuals._enlarge:
        torch.testing.assert_close(larger, task.statistics.apply(own))


def test_mosaics_are_images_side_by_side():
    images = torch.arange(8 * 3 * 2 * 2).float().reshape(8, 3, 2, 2)
    whole = residuals.mosaics(images, 2)
    assert whole.shape == (2, 3, 4, 4)
    assert torch.equal(whole[0, :, :2, :2], images[0])
    assert torch.equal(whole[0, :, :2, 2:], images[1])
    assert torch.equal(whole[1, :, 2:, :2], images[6])


def test_measured_reach_is_the_counted_one(run):
    data = run("mdeq/receptive")
    rows = cells(receptive.STUDY.views[0], data)
    assert len(rows) == 5 and {row["nothing beyond"] for row in rows} == {"yes"}
    for row in rows:
        count = row["resolutions"]
        assert row["measured"] == row["counted"] <= row["r 2^n"] == row["r"] * 2**count
        assert row["one evaluation sees of z"] == {1: 2, 2: 5}[count]
        assert row["resolutions where both agree"] == f"{count:g} of {count:g}"
    strength = data.series("distance", evals=1).groupby("norm")["gradient"].agg(list)
    assert min(strength["group"]) > 0  # the statistics of GroupNorm reach every pixel
    assert not any(strength["none"][3:])


def test_memory_at_equilibrium_does_not_grow_as_unrolled(run):
    data = run("mdeq/memory", only=lambda point: point.factors["network"] in ("mdeq", "resnet"))
    rows = cells(memory.STUDY.views[0], data)
    taken = {(row["network"], row["how"], row["evaluations"]): row["MiB"] for row in rows}
    grown = {
        how: taken["MDEQ", how, 4] / taken["MDEQ", how, 2] for how in ("at equilibrium", "unrolled")
    }
    assert grown["unrolled"] > 1.4
    assert grown["at equilibrium"] < grown["unrolled"]
    assert taken["ResNet", "as it is", None] > 0


def test_deviations_and_trainings_that_diverged(monkeypatch):
    monkeypatch.setattr(tables, "IMAGES", {"mnist": "MNIST"})
    factors = grid(data=["mnist"], network=common.NAMES, seed=range(3))
    ran_away = {"diverged": "the loss is nan"}
    ends = {"mdeq": [{"accuracy": 0.5}, {"accuracy": 0.6}, ran_away], "resnet": [ran_away] * 2}
    rows = [
        {"data": "mnist", "network": name, "seed": seed} | ended
        for name, endings in ends.items()
        for seed, ended in enumerate(endings)
    ]
    found = cells(tables.ACCURACY, Data.of(pd.DataFrame(rows), factors))
    said = {row["network"]: row for row in found if row["images"] == "MNIST"}
    assert said["MDEQ"]["test accuracy, %"] == "55.0 ± 7.1"
    assert said["MDEQ"]["seeds"] == "2 of 3"
    assert said["ResNet"]["test accuracy, %"] == "diverged"
    assert said["neural ODE"]["test accuracy, %"] == "not run"


def test_sizes_stand_beside_the_published_ones():
    rows = {row["recipe"]: row for row in cells(tables.RELEASED, None)}
    assert rows["mdeq-imagenet-xl-paper"]["published"] == "81M"
    assert rows["mdeq-imagenet-xl-paper"]["ours"] == "90.46M"
    assert rows["mdeq-cifar10-tiny-paper"]["ours"] == "0.16M"
