"""The experiments of chapter 3 of the thesis from end to end, on 8x8 digits and tiny networks."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import pytest
import tiny
import torch
from rich.console import Console

from equilibria.bench import record
from equilibria.experiments import draw
from equilibria.experiments.experiment import NOT_RUN
from equilibria.experiments.mdeq import convergence, memory, networks, receptive, tables
from equilibria.experiments.runner import execute
from equilibria.tasks.classification import ImageClassification
from equilibria.train import memory as step_memory

QUIET = Console(quiet=True)
MODEL = {
    "name": "mdeq", "channels": [4, 4], "head_channels": [2, 2], "final": 8, "expansion": 2,
    "groups": 2, "initial": None,
}  # fmt: skip
TASK = {"name": "image_classification", "data": "digits", "samples": 20, "valid": 20}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run an experiment on tiny networks: run(module) -> (outcome, tables by title).

    All experiments share the trainings.
    """
    folder = tmp_path_factory.mktemp("mdeq")
    path = tiny.recipe(folder, "images", TASK, MODEL, eval_batch_size=500, epochs=1)
    digits = networks.Images(
        words="digits", recipe={"cpu": path}, channels=1, side=8, published=True
    )

    def run(module, **options):
        fields = {"out": folder / "out", "console": QUIET, "command": "typed", **options}
        outcome = execute(module.EXPERIMENT, **fields)
        page = module.show(outcome.done)
        draw.draw(page.panels, folder / "figure.svg")
        for table in page.tables:
            assert all(len(row) == len(table.columns) for row in table.rows), table.title
            json.dumps(record.finite(table.rows), allow_nan=False)
        return outcome, {table.title.split(":")[0]: table for table in page.tables}

    with pytest.MonkeyPatch.context() as patch:
        for module in (networks, tables, convergence, receptive, memory):
            patch.setattr(module, "DATA", {"cifar10": digits})
        networks.model_of.cache_clear()
        patch.setattr(step_memory, "DEPTHS", (3,))  # of the profiler
        tiny.multiscale(patch)
        yield run
    networks.model_of.cache_clear()


def by_column(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_networks_of_one_size_are_trained_alike(run):
    recipes = {kind: networks.recipe_of("cifar10", kind, "cpu") for kind in networks.NETWORKS}
    base = recipes["mdeq"]
    assert {recipe.batch_size for recipe in recipes.values()} == {base.batch_size}
    assert {recipe.epochs for recipe in recipes.values()} == {base.epochs}
    assert {recipe.task for recipe in recipes.values()} == {base.task}
    assert {recipe.schedule for recipe in recipes.values()} == {base.schedule}
    assert {recipe.clip for recipe in recipes.values()} == {base.clip}
    for kind, recipe in recipes.items():  # but for its rate
        rate = networks.NETWORKS[kind].rate * base.optimiser.lr
        assert recipe.optimiser == dataclasses.replace(base.optimiser, lr=rate)
    assert recipes["single"].solver == base.solver and recipes["resnet"].solver is None
    counts = {
        kind: networks.parameters("cifar10", recipe.model, base) for kind, recipe in recipes.items()
    }
    for kind, network in networks.NETWORKS.items():
        if network.candidates is None:
            continue
        others = itertools.islice(network.candidates(base.model, 8), 4)
        misses = [
            abs(networks.parameters("cifar10", each, base) - counts["mdeq"]) for each in others
        ]
        assert abs(counts[kind] - counts["mdeq"]) <= min(misses)


def test_the_table_has_all_networks_beside_the_thesis(run):
    outcome, found = run(tables)
    assert not outcome.missing and len(outcome.done) == 5
    rows = by_column(found["Table 3.1"])
    assert [row["network"] for row in rows if row["whose"] == "thesis"][:2] == [
        "Neural ODE",
        "augmented Neural ODE",
    ]
    mine = [row for row in rows if row["whose"] == "ours"]
    assert {row["network"] for row in mine} == {n.words for n in networks.NETWORKS.values()}
    digits = outcome.done["cifar10-mdeq-0"].value["source"]
    assert digits and {row["images"] for row in mine} == {digits}
    assert all(row["minutes"] > 0 and row["seeds"] == "1 of 1" for row in mine)
    order = by_column(found["The order of the networks by mean test accuracy"])
    assert order[0]["order"].startswith("MDEQ-small > single-stream DEQ > ResNet-18")
    assert len(order[1]["order"].split(" > ")) == 5


def test_the_course_of_each_resolution_and_size(run):
    outcome, found = run(convergence)
    assert not outcome.missing
    table = found["Relative residual of each resolution, median over test images"]
    levels = {row["resolution"] for row in by_column(table) if row["network"] == "MDEQ"}
    assert levels == {"highest", "1/2", "all"}
    sizes = by_column(found["Relative residual on larger images"])
    assert {row["pixels a side"] for row in sizes} == {8, 16}
    assert all("±" in row["after 2"] for row in sizes)


@pytest.mark.parametrize("kind", convergence.KINDS)
def test_images_of_each_size_are_normalised_as_in_the_training(monkeypatch, kind):
    monkeypatch.setattr(convergence, "BATCHES", 2)
    monkeypatch.setattr(convergence, "BATCH", 4)
    task = ImageClassification(data="digits", size=4, samples=20, normalise=True).load()
    trained = SimpleNamespace(data=task)
    images = convergence._images(trained, kind, 4, None)
    torch.testing.assert_close(images, task.sample("test", 8).inputs)
    own = ImageClassification(data="digits").load().sample("test", 8).inputs  # 8 x 8 pixels
    larger = convergence._images(trained, kind, 8, None)
    assert larger.shape == own.shape
    if kind == "enlarged":
        torch.testing.assert_close(larger, task.statistics.apply(own))


def test_mosaics_are_images_side_by_side():
    images = torch.arange(8 * 3 * 2 * 2).float().reshape(8, 3, 2, 2)
    whole = convergence.mosaics(images, 2)
    assert whole.shape == (2, 3, 4, 4)
    assert torch.equal(whole[0, :, :2, :2], images[0]) and torch.equal(
        whole[0, :, :2, 2:], images[1]
    )
    assert torch.equal(whole[1, :, 2:, :2], images[6])


def test_measured_reach_is_the_counted_one(run):
    outcome, found = run(receptive)
    assert not outcome.missing
    rows = by_column(found["How far an output sees after r plain evaluations, in pixels"])
    assert len(rows) == 5 and {row["nothing beyond"] for row in rows} == {"yes"}
    for row in rows:
        assert row["measured"] == row["counted"]
        assert row["measured"] <= row["r 2^n"] == row["r"] * 2 ** row["resolutions"]
        assert row["one evaluation sees of z"] == {1: 2, 2: 5}[row["resolutions"]]
        assert (
            row["resolutions where both agree"] == f"{row['resolutions']} of {row['resolutions']}"
        )
    strength = outcome.done["strength"].value
    assert min(strength["group"]["1"]) > 0  # the statistics of GroupNorm reach every pixel
    assert strength["none"]["1"][3:] == [0.0] * (len(strength["none"]["1"]) - 3)


def test_memory_at_equilibrium_does_not_grow_as_unrolled(run):
    outcome, found = run(memory, only=lambda key: key in ("mdeq", "resnet"))
    assert set(outcome.done) == {"mdeq", "resnet"}
    rows = by_column(found["Memory of a training step, MiB"])
    taken = {(row["network"], row["how"], row["evaluations"]): row["MiB"] for row in rows}
    grown = {
        how: taken["MDEQ", how, 4] / taken["MDEQ", how, 2] for how in ("at equilibrium", "unrolled")
    }
    assert grown["unrolled"] > 1.5
    assert grown["at equilibrium"] < grown["unrolled"]
    assert taken["ResNet", "as it is", None] > 0


def test_what_is_not_run_says_so(run, tmp_path):
    empty = {"only": lambda key: False, "out": tmp_path}
    _, found = run(tables, **empty)
    mine = [row for row in by_column(found["Table 3.1"]) if row["whose"] == "ours"]
    assert {row["test accuracy, %"] for row in mine} == {NOT_RUN}
    for module in (convergence, receptive, memory):
        outcome, _ = run(module, **empty)
        assert not outcome.done


def test_deviations_and_runs_that_ran_away(monkeypatch):
    monkeypatch.setattr(tables, "SEEDS", (0, 1, 2))
    value = {"seconds": 60.0, "parameters": 5, "metrics": [], "memory": [], "source": "images"}
    sound = [{**value, "diverged": None, "evaluation": {"accuracy": share}} for share in (0.5, 0.6)]
    away = {**value, "diverged": "nan", "evaluation": None}
    case = dataclasses.make_dataclass("Case", ["value"])
    done = {
        networks.key("mnist", "mdeq", seed): case(each) for seed, each in enumerate([*sound, away])
    }
    summary = tables._summary(done, "mnist", "mdeq")
    assert summary.runs == 3 and summary.diverged == 1
    assert summary.accuracy() == "55.0 ± 7.1"
    gone = tables._summary({networks.key("mnist", "mdeq", 0): case(away)}, "mnist", "mdeq")
    assert gone.accuracy() == "diverged"


def test_sizes_stand_beside_the_published_ones():
    rows = {row[0]: row for row in tables.sizes().rows}
    assert rows["mdeq-imagenet-xl-paper"][2:4] == ["81M", "90.46M"]
    assert rows["mdeq-cifar10-tiny-paper"][2:4] == ["170K", "0.16M"]
