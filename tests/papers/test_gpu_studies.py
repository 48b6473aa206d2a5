"""The studies that wait for a GPU run here too, on tiny recipes."""

from pathlib import Path

import pytest
import yaml

from equilibria.run import recipe as recipes
from equilibria.run.studies import catalog, pages
from equilibria.run.studies.study import Point
from equilibria.run.studies.training import Training

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
SOLVES = {
    "solver": {"name": "Anderson", "rtol": 1e-2, "max_evals": 12},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-2, "max_evals": 12}},
}
CELL = {"name": "deq-transformer", "width": 8, "heads": 2, "inner": 16, "memory": 4, "scale": 0.2}
SIZES = {"epochs": 2, "epoch_steps": 3, "batch_size": 4, "eval_batch_size": 4, "probes": 2}


def load(name):
    catalog._import_file.cache_clear()  # tests change what is in the module
    study = catalog.find(str(FOLDER / f"{name}.py"))
    return study, study.points.__globals__


@pytest.fixture
def recipe(tmp_path):
    """A language model on some hundred words."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog lay by the door\n" * 60)
    text = {"file": str(tmp_path / "text.txt"), "unit": "words", "length": 8}
    tree = {
        "description": "tiny",
        "model": CELL,
        "optimizer": {"name": "AdamW", "lr": 3e-3},
        "task": {"name": "language_modeling", **text},
        **SOLVES,
        **SIZES,
    }
    (tmp_path / "lm.yaml").write_text(yaml.safe_dump(tree))
    return str(tmp_path / "lm.yaml")


def rows(study, data):
    """Cells of the study's table, by heading."""
    table = pages.render(study, data).grids[0]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_a_training_is_shown_epoch_by_epoch(recipe, measured):
    study, names = load("training")
    names["RECIPES"]["tiny"] = None
    point = Point(
        factors={"recipe": "tiny"},
        measures=[names["curve"]],
        runs={"run": Training(recipe=recipes.load(recipe), minutes=1)},
    )
    *epochs, last = rows(study, measured(study, [point]))
    assert [str(row["epoch"]) for row in epochs] == ["1", "2"] and last["epoch"] == "test"
    assert all(row["images or tokens a second"] > 0 for row in epochs)
    assert last["accuracy or perplexity"] > 1 and last["published, %"] is None


def test_trainings_have_the_published_figures():
    _, names = load("training")
    printed = {name: names["printed"](name) for name in names["RECIPES"]}
    assert printed["mdeq-cifar10-small-gpu"] == 87.1 and printed["mdeq-cifar10-gpu"] == 93.8
    assert printed["mdeq-imagenet-small-jr-paper"] == 74.5
    assert printed["mdeq-imagenet-large-jr-paper"] == 76.8
    assert printed.keys() <= set(recipes.available())


@pytest.mark.slow
def test_throughput_measures_every_network(recipe, measured):
    study, names = load("throughput")
    names |= {"RECIPE": recipe, "VOCABULARY": 30, "TOKENS": 500, "ROUNDS": 1, "WARM_UP": 1}
    names["PRECISIONS"] = ("float32",)
    found = {row["network"]: row for row in rows(study, measured(study, study.points("gpu")))}
    assert len(found) == 7 and {"deq", "deq-30", "tied-18-checkpointed"} <= set(found)
    for row in found.values():
        assert row["tokens a second, training"] > 0 and row["reading"] > 0
        assert row["a step, tied-18 being 1"] > 0 and row["reading, likewise"] > 0
        assert row["GiB of a step, all of it"] > 0
    assert found["deq-12"]["evaluations, mean"] == 12
    assert found["tied-12"]["evaluations, mean"] is None


def test_made_up_text_follows_zipf():
    _, names = load("throughput")
    corpus = names["corpus"](1000, 100_000)
    counts = corpus.splits["train"].bincount(minlength=1000).double()
    assert len(counts) == 1000
    assert counts[0] / counts[10] == pytest.approx(12.7 / 2.7, rel=0.2)
