"""Every shipped recipe starts: it fits its data, its first solves converge, its loss falls."""

import dataclasses
import functools

import pytest
import texts
import torch
from accelerate import Accelerator
from small_graphs import two_rings, write_molecules

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.data.errors import DataError
from equilibria.run.trainer import Trainer
from equilibria.zoo.flow.model.configs import FlowConfig
from equilibria.zoo.graph.model import GraphConfig
from equilibria.zoo.graph.task.whole_graphs import GraphClassification
from equilibria.zoo.language.model.config import SequenceConfig
from equilibria.zoo.language.task.language import LanguageModelling
from equilibria.zoo.recurrent.model import RecurrentConfig
from equilibria.zoo.signal.model.configs import RepresentationConfig
from equilibria.zoo.vision.model.config import VisionConfig

CORPORA = {"ptb": 10_000, "wikitext2": 33_278, "wikitext103": 267_735}
"""Tokens of the vocabularies, for recipes whose data are not read here."""

SMALL = {
    FlowConfig: 1e6,
    GraphConfig: 1e5,
    SequenceConfig: 4e6,
    VisionConfig: 1e5,
    RecurrentConfig: 1e5,
    RepresentationConfig: 1e5,
}
"""Parameters of a model that takes steps here, by what its config is; others all do."""


@functools.cache
def described(name):
    """A recipe, and how many parameters its model has; large models are built on no device."""
    recipe = recipes.load(name)
    config = recipe.model
    if isinstance(config, SequenceConfig) and config.vocabulary is None:
        data = getattr(recipe.task, "data", None)
        config = dataclasses.replace(config, vocabulary=CORPORA.get(data, 100))
    if isinstance(config, VisionConfig) and config.shape is None:
        config = dataclasses.replace(config, shape=(3, 64, 64), classes=10)
    if isinstance(config, RecurrentConfig):
        config = dataclasses.replace(config, shape=(9,), classes=2)
    if isinstance(config, RepresentationConfig):
        config = dataclasses.replace(config, inputs=3, outputs=3, scale=64.0)
    if isinstance(config, GraphConfig):
        level = "graph" if isinstance(recipe.task, GraphClassification) else "node"
        config = dataclasses.replace(config, shape=(50,), classes=121, level=level)
    with torch.device("meta" if isinstance(config, tuple(SMALL)) else "cpu"):
        model = config.build(**recipe.layer())
    return recipe, sum(p.numel() for p in model.parameters())


def small(kind):
    """The recipes of a kind of config whose first steps take seconds; of no kind in `SMALL`: None.

    The checks that read no data are the only ones of the larger ones.
    """
    found = ((name, *described(name)) for name in recipes.available())
    return [
        name
        for name, recipe, size in found
        if (
            not isinstance(recipe.model, tuple(SMALL))
            if kind is None
            else isinstance(recipe.model, kind) and size < SMALL[kind]
        )
    ]


# Written down, since whatever asks for the size of every model as tests are collected is slow.
STARTED = {
    None: "digits digits-jr mnist mnist-dense mnist-dense-gpu",
    FlowConfig: "flow-layers flow-layers-raft",
    GraphConfig: "chains cora cox2 graphs nodes proteins",
    SequenceConfig: ("copy-memory lm-ptb lm-ptb-characters lm-ptb-ernn lm-ptb-trellisnet lm-text"),
    VisionConfig: "mdeq-cifar10-16 mdeq-mnist-16 shapes",
    RepresentationConfig: "film image shape sound",
}
DATALESS = {"digits", "digits-jr", "chains", "copy-memory", "graphs", "lm-text", "nodes"}
"""Of those without a kind, of graphs and of sequences: the data are shipped or the user's own."""


def started(kind):
    return STARTED[kind].split()


def marked(kind):
    """The names; those whose data set is neither shipped nor the user's own are marked `data`."""
    return [
        pytest.param(name, marks=() if name in DATALESS else pytest.mark.data)
        for name in started(kind)
    ]


@pytest.mark.parametrize("kind", STARTED)
def test_the_recipes_that_take_steps_here_are_those_of_small_models(kind):
    assert started(kind) == small(kind)
    if kind in (None, GraphConfig, SequenceConfig):
        tasks = {name: described(name)[0].task for name in started(kind)}
        own = {n for n, task in tasks.items() if getattr(task, "data", None) in (None, "digits")}
        assert own == DATALESS & {*tasks}


def loaded(recipe):
    """The recipe's data; skips where they lie in none of the folders."""
    try:
        return recipe.task.load()
    except DataError as error:
        if not str(error).startswith("could not download"):
            raise
        pytest.skip(str(error))


def losses(trainer, steps):
    """The loss of each of the first steps."""
    found = []
    for _ in range(steps):
        before = dict(trainer.tally.sums)
        trainer.train_step()
        loss, units = (
            float(trainer.tally.sums[name] - before.get(name, 0)) for name in ("loss", "units")
        )
        found.append(loss / units)
    return found


@pytest.mark.parametrize("name", recipes.available())
def test_a_shipped_recipe_builds_its_model(name):
    recipe, size = described(name)
    assert recipe.description and size > 0


@pytest.mark.parametrize("name", marked(None))
def test_a_shipped_recipe_starts(name):
    recipe = recipes.load(name, ["--schedule.name", "Constant", "--schedule.warmup", "0"])
    trainer = Trainer(recipe, loaded(recipe), Accelerator(cpu=True))
    found = losses(trainer, 10)
    assert min(found[5:]) < 0.8 * found[0]
    summary = trainer.tally.summary(trainer.task)
    assert summary["forward"]["status"]["CONVERGED"] == 1.0
    assert summary["adjoint"]["status"]["CONVERGED"] == 1.0
    assert 0.3 < trainer.radius()["mean"] < 1.0


@pytest.mark.parametrize("name", marked(SequenceConfig))
def test_a_shipped_recipe_of_sequences_starts(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = recipes.load(name).task
    options = ["--schedule.name", "Constant", "--schedule.warmup", "0", "--batch_size", "2"]
    if isinstance(task, LanguageModelling) and task.data is None:
        options += ["--task.file", str(texts.write(tmp_path / "text.txt", sentences=400))]
    recipe = recipes.load(name, options)
    recipe = dataclasses.replace(recipe, pretrain=None)
    trainer = Trainer(recipe, loaded(recipe), Accelerator(cpu=True))
    found = losses(trainer, 10)
    assert min(found[5:]) < 0.9 * found[0]
    if recipe.model.implicit:
        summary = trainer.tally.summary(trainer.task)
        assert summary["forward"]["status"]["CONVERGED"] > 0.9
        assert summary["adjoint"]["status"]["CONVERGED"] > 0.9


SIGNALS = {
    "film": ["--task.size", "24", "--task.frames", "4", "--batch_size", "600"],
    "image": ["--task.size", "24"],
    "shape": [
        "--batch_size",
        "500",
        "--task.test",
        "100",
        "--task.near",
        "0",
        "--optimiser.lr",
        "0.01",
    ],
    "sound": ["--task.seconds", "0.1"],
}
"""What makes the recipes of signals small enough to take steps here."""


@pytest.mark.data
@pytest.mark.parametrize("name", started(RepresentationConfig))
def test_a_shipped_recipe_of_coordinates_starts(name):
    options = ["--schedule.name", "Constant", "--schedule.warmup", "0", "--model.width", "64"]
    recipe = recipes.load(name, options + SIGNALS[name])
    try:
        trainer = Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))
    except DataError as error:
        if not any(word in str(error) for word in ("could not download", "not installed")):
            raise
        pytest.skip(str(error))
    found = losses(trainer, 30)
    assert min(found[20:]) < 0.9 * found[0]
    first = evaluation.evaluate(trainer.model, trainer.task, trainer.accelerator)
    assert first["forward"]["status"]["CONVERGED"] > 0.9


@pytest.mark.data
@pytest.mark.parametrize("name", started(VisionConfig))
def test_a_shipped_recipe_of_pictures_starts(name):
    options = ["--schedule.name", "Constant", "--schedule.warmup", "0", "--task.samples", "40"]
    recipe = dataclasses.replace(recipes.load(name, options), pretrain=None)
    trainer = Trainer(recipe, loaded(recipe), Accelerator(cpu=True))
    found = losses(trainer, 30)  # a batch of 32 of the same 40 pictures each time
    assert min(found[20:]) < 0.9 * found[0]
    summary = trainer.tally.summary(trainer.task)
    assert summary["forward"]["status"]["CONVERGED"] > 0.5
    # Phantom gradients solve nothing backward.
    solved = summary["adjoint"]["status"] or {"CONVERGED": 1.0}
    assert solved["CONVERGED"] > 0.5


@pytest.mark.parametrize("name", marked(GraphConfig))
def test_a_shipped_recipe_of_graphs_starts(name, tmp_path):
    own = {"nodes": two_rings, "graphs": lambda path: write_molecules(path.with_suffix(""))}
    options = ["--schedule.name", "Constant", "--schedule.warmup", "0"]
    if name in own:
        options += ["--task.data", str(own[name](tmp_path / "mine.npz"))]
    recipe = recipes.load(name, options)
    trainer = Trainer(recipe, loaded(recipe), Accelerator(cpu=True))
    found = losses(trainer, 6)
    assert min(found[3:]) < found[0]
    summary = trainer.tally.summary(trainer.task)
    assert summary["forward"]["status"]["CONVERGED"] > 0.98
    assert summary["adjoint"]["status"]["CONVERGED"] > 0.98


@pytest.mark.parametrize("name", started(FlowConfig))
def test_a_shipped_recipe_of_flow_starts(name):
    options = ["--schedule.name", "Constant", "--schedule.warmup", "0", "--batch_size", "2"]
    options += ["--task.size", "[64, 64]", "--task.samples", "2", "--task.test", "1"]
    recipe = recipes.load(name, options)
    trainer = Trainer(recipe, loaded(recipe), Accelerator(cpu=True))
    found = losses(trainer, 8)  # the same two pairs each time
    assert min(found[4:]) < 0.8 * found[0]


@pytest.mark.parametrize("name", ["adding", "order", pytest.param("har2", marks=pytest.mark.data)])
def test_a_shipped_recipe_of_signals_starts(name):
    recipe = recipes.load(name, ["--schedule.name", "Constant", "--schedule.warmup", "0"])
    trainer = Trainer(recipe, loaded(recipe), Accelerator(cpu=True))
    found = losses(trainer, 10)
    assert all(loss < 10 for loss in found) and min(found[5:]) < found[0]
