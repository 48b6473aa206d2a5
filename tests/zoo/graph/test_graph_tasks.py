"""Tasks on graphs: who trains and who tests, what a batch counts, and all commands."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from accelerate import Accelerator
from small_graphs import GraphConfig, tiny, two_rings, write_molecules
from torch.nn import functional

from equilibria.run import memory
from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.data import DataError
from equilibria.run.folder import absolute
from equilibria.run.memory import measure
from equilibria.run.run import load
from equilibria.run.start import TrainingError, examine_start
from equilibria.run.tasks import Part
from equilibria.run.trainer import Trainer
from equilibria.stability import comparison
from equilibria.zoo.graph.data import Graph, NodeSet
from equilibria.zoo.graph.task.nodes import MICRO_F1, Chains, NodeClassification, NodeTask
from equilibria.zoo.graph.task.whole_graphs import GraphClassification
from equilibria.zoo.io import selection
from equilibria.zoo.vision.model.single_scale import DenseConfig

__all__ = ["tiny"]

SOLVER = {"name": "Anderson", "rtol": 1e-3, "max_evals": 40}


def recipe(task, **more):
    return {
        "task": task,
        "model": {"name": "tiny-graph"},
        "solver": SOLVER,
        "optimizer": {"name": "Adam", "lr": 0.03},
        "epochs": 3,
        "epoch_steps": 8,
        "batch_size": 1,
        "eval_batch_size": 7,
        "probes": 3,
        **more,
    }


def run_of(folder, tree):
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    assert main(["train", str(folder / "recipe.yaml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


# --- nodes ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unsaved")
@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
def test_the_use_of_depth_is_not_measured_of_nodes(tmp_path, capsys):
    """They are solved together, and none is a sample that could begin elsewhere or be harder."""
    two_rings(tmp_path / "rings.npz")
    tree = recipe(
        {"name": "node_classification", "data": str(tmp_path / "rings.npz")},
        model={"name": "ignn", "hidden": [4]},
        epochs=1,
        epoch_steps=1,
    )
    run = run_of(tmp_path, tree)
    assert main(["depth", str(run)]) == 1
    assert "solves the rows of a graph as one sample" in capsys.readouterr().err


@pytest.mark.usefixtures("unsaved")
def test_all_commands_on_the_nodes_of_a_graph(tiny, tmp_path, capsys):
    two_rings(tmp_path / "rings.npz")
    tree = recipe({"name": "node_classification", "data": None, "normalize": False})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    run, path = tmp_path / "run", str(tmp_path / "rings.npz")
    begin = ["train", str(tmp_path / "recipe.yaml"), "--out", str(run)]
    assert main([*begin, "--data", path]) == 0
    first, *_, last = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert last["valid"]["loss"] < first["valid"]["loss"] and last["nodes"] == 8 * 36
    trained = json.loads((run / "evaluation.json").read_text())
    assert trained["accuracy"] > 0.8 and trained["nodes"] == 12
    assert trained["forward"]["status"]["CONVERGED"] == 1.0
    known = json.loads((run / "graphs.json").read_text())
    assert (known["labels"], known["features"], known["level"]) == (["0", "1"], 3, "node")
    assert main(["evaluate", str(run)]) == 0
    assert json.loads((run / "evaluation.json").read_text()) == trained
    assert "12 test nodes of rings" in " ".join(capsys.readouterr().out.split())
    assert main(["evaluate", str(run), "--split", "train"]) == 0
    assert main(["doctor", str(run), "--starts", "1"]) == 0
    # Of one sample: nodes of which nothing is asked have no gradient to be compared.
    assert json.loads((run / "doctor.json").read_text())["gradient"]["sample_cosine"] > 0.99
    assert main(["report", str(run)]) == 0
    assert "nodes per second" in (run / "report.html").read_text()

    # Other graphs, of which all nodes are test nodes.
    other = two_rings(tmp_path / "other.npz", 20, seed=1)
    assert main(["evaluate", str(run), "--data", str(other)]) == 0
    (written,) = run.glob("evaluation-other-other-*.json")
    assert json.loads(written.read_text())["nodes"] == 40
    capsys.readouterr()
    np.savez(tmp_path / "wide.npz", x=np.eye(6), edge_index=np.zeros((2, 0), int), y=[0, 1] * 3)
    assert main(["evaluate", str(run), "--data", str(tmp_path / "wide.npz")]) == 1
    assert "wide has nodes with 6 features, and the run's data with 3" in capsys.readouterr().err


def test_a_file_in_this_folder_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_rings(tmp_path / "rings.npz")
    task = NodeClassification(data=None).at("rings.npz")
    assert task.data == str(tmp_path / "rings.npz")
    assert absolute(NodeClassification(data="rings.npz")).data == task.data  # type: ignore
    assert NodeClassification().at("pubmed").data == "pubmed"
    with pytest.raises(ValueError, match=r"name a file with --data FILE\.npz"):
        NodeClassification(data=None).load()
    with pytest.raises(ValueError, match="generates its own data"):
        Chains().at("rings.npz")


def node_task(tmp_path, **options):
    return NodeClassification(data=str(two_rings(tmp_path / "g.npz")), **options).load()


def test_nodes_are_asked_in_their_split_alone(tmp_path):
    task = node_task(tmp_path, normalize=False)
    assert task.splits == ("train", "valid", "test")
    assert (task.eval_split, task.unit) == ("valid", "nodes")
    asked = []
    for split in task.splits:
        (batch,) = task.batches(split, 5)
        (x, edge_index, weight, index), targets = batch.inputs, batch.targets
        assert x.shape == (60, 3) and edge_index.shape == (2, 120)
        assert (weight, index, batch.samples) == (None, None, 1)
        asked.append(targets >= 0)
        assert task.units(targets) == int(asked[-1].sum())
    assert bool((sum(each.long() for each in asked) == 1).all())
    assert [int(each.sum()) for each in asked] == [36, 12, 12]
    targets = task.sample("train", 1).targets
    output = torch.randn(60, 2)
    output[asked[2]] = torch.nan  # what the others answer is not looked at
    expected = functional.cross_entropy(output[asked[0]], targets[asked[0]], reduction="sum")
    model: Any = None
    torch.testing.assert_close(task.loss(model, output, targets), expected)
    right = (output[asked[0]].argmax(1) == targets[asked[0]]).sum()
    assert task.sums(model, output, targets)["correct"] == right


@pytest.mark.parametrize("kind", ["below zero", "counts", "fractions"])
def test_features_are_left_as_they_are_where_one_is_below_zero(kind, tmp_path):
    draw = np.random.default_rng(0)
    x = {
        "below zero": draw.normal(size=(60, 3)),
        "counts": draw.integers(0, 5, (60, 3)) + 1.0,
        "fractions": draw.random((60, 3)),
    }[kind].astype(np.float32)
    path = two_rings(tmp_path / "mine.npz", x=x)
    tree = recipe({"name": "node_classification", "data": str(path)}, model={"name": "gcn"})
    tree |= {"solver": None, "adjoint": None, "epochs": 1}
    run = run_of(tmp_path, tree)
    whole = kind != "below zero"
    expected = x / x.sum(1, keepdims=True) if whole else x
    loaded = load(run)
    settled, task = loaded.recipe.task, loaded.data
    assert isinstance(settled, NodeClassification) and task is not None
    assert settled.normalize is whole  # as other data will be
    assert np.allclose(task.sample("test", 1).inputs[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["nodes", "graphs"])
def test_the_recipes_for_ones_own_graphs_ask_for_them(name, tmp_path, capsys):
    assert main(["train", name, "--out", str(tmp_path / "run")]) == 1
    assert "--data FILE.npz" in capsys.readouterr().err


def test_features_are_normalised_or_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"negative features cannot be normalised .*; set task\.normalize to null"
    ):
        node_task(tmp_path, normalize=True)
    x = np.array([[1.0, 3], [0, 0], [2, 2]] * 20)
    two_rings(tmp_path / "positive.npz", x=x)
    task = NodeClassification(data=str(tmp_path / "positive.npz")).load()
    assert task.sample("test", 1).inputs[0][:3].tolist() == [[0.25, 0.75], [0, 0], [0.5, 0.5]]
    assert task.samples["train"].graphs[0] is task.samples["test"].graphs[0]  # type: ignore


def test_another_division_of_the_nodes(tmp_path):
    given, drawn, same = (node_task(tmp_path, normalize=False, split=s) for s in (None, 3, 3))
    for split, count in (("train", 18), ("valid", 6), ("test", 6)):
        one, two, three = (task.sample(split, 1).targets for task in (given, drawn, same))
        assert not torch.equal(one, two) and torch.equal(two, three)
        assert int((two >= 0).sum()) == 2 * count
    train = drawn.sample("train", 1).targets
    assert train[train >= 0].bincount().tolist() == [18, 18]
    with pytest.raises(ValueError, match="split must not be negative"):
        NodeClassification(split=-1)


def test_several_labels_are_judged_by_micro_f1():
    y = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 0]])
    graph = Graph(torch.eye(3), torch.tensor([[0, 1], [1, 2]]), y=y)
    parts = {"train": (graph, graph), "valid": (graph,), "test": (graph,)}
    labels = ("a", "b", "c")
    found = NodeSet(
        name="n", title="N", **parts, labels=labels, multilabel=True, source="s", checksum="c"
    )
    task = NodeTask(found)
    assert task.primary is MICRO_F1
    batch = task.sample("train", 2)
    assert batch.samples == 2 and batch.inputs[3].tolist() == [0, 0, 0, 1, 1, 1]
    output = torch.tensor([[1.0, 1, -1], [-1, -1, -1], [1, 1, 1]]).repeat(2, 1)
    model: Any = None
    sums = dict(task.sums(model, output, batch.targets))
    assert (sums["found"], sums["false"], sums["missed"]) == (6, 4, 2)
    assert task.figures({**sums, "loss": torch.tensor(0.0), "units": torch.tensor(6)}) == {
        "loss": 0.0,
        "micro_f1": pytest.approx(12 / (12 + 4 + 2)),
    }
    mean = functional.binary_cross_entropy_with_logits(output, batch.targets)
    loss = task.loss(model, output, batch.targets) / task.units(batch.targets)
    assert float(loss) == pytest.approx(float(mean))
    with pytest.raises(ValueError, match=r"one class each: set task\.split to null"):
        NodeTask(found, split=0)


def test_chains_are_a_task():
    task = Chains(length=20, classes=3, chains=5, directed=False).load()
    assert task.source == "undirected chains of length 20, 3 classes"
    assert int((task.sample("train", 1).targets >= 0).sum()) == 15
    with pytest.raises(ValueError, match="length must be at least 2"):
        Chains(length=1)


# --- whole graphs --------------------------------------------------------------------------------


def test_all_commands_on_whole_graphs(tiny, tmp_path, capsys):
    folder = write_molecules(tmp_path / "mine")
    task = {"name": "graph_classification", "data": str(folder), "folds": 5, "fold": 1}
    run = run_of(tmp_path, recipe(task, batch_size=16, accumulate=2, epochs=4, epoch_steps=None))
    first, *_, last = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert last["train"]["loss"] < first["train"]["loss"]
    assert last["graphs"] == 2 * 16  # of 43: 60 less 12 of the fold, less 5
    trained = json.loads((run / "evaluation.json").read_text())
    assert trained["graphs"] == 12 and trained["forward"]["status"]["CONVERGED"] == 1.0
    capsys.readouterr()
    assert main(["evaluate", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "12 test graphs of mine" in shown and "majority class: accuracy │ 50.00 %" in shown
    assert main(["doctor", str(run), "--starts", "1", "--samples", "8"]) == 0
    other = write_molecules(tmp_path / "more", "more", 10)
    assert main(["evaluate", str(run), "--data", str(other)]) == 0
    (written,) = run.glob("evaluation-other-more-*.json")
    assert json.loads(written.read_text())["graphs"] == 10


def test_gradients_of_whole_graphs_by_one_layer_or_more(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "DEPTHS", (2,))
    monkeypatch.setattr(comparison, "SETTINGS", ((2, 1.0),))
    monkeypatch.setattr(comparison, "peak_bytes", lambda step, device: 0)
    task = {"name": "graph_classification", "data": str(write_molecules(tmp_path / "mine"))}
    sizes = {"batch_size": 8, "epochs": 1, "epoch_steps": 1}
    for hidden in ([4], [4, 4]):
        tree = recipe(task, model={"name": "ignn", "hidden": hidden}, **sizes)
        folder = tmp_path / str(len(hidden))
        folder.mkdir()
        run = run_of(folder, tree)
        assert main(["memory", str(run)]) == 0
        capsys.readouterr()
        done = main(["gradients", str(run), "--repeats", "1"])
        said = capsys.readouterr()
        if len(hidden) == 1:
            assert done == 0 and "Gradients of 8 samples" in said.out
            assert main(["doctor", str(run), "--starts", "1", "--samples", "8"]) == 0
            capsys.readouterr()
        else:
            assert done == 1 and "solves for several equilibria in a forward pass" in said.err
            assert not (run / "gradients.json").exists()


def test_each_graph_tests_once_and_never_chooses(tmp_path):
    folder = write_molecules(tmp_path / "mine", count=61)
    owner = (folder / "mine_graph_indicator.txt").read_text()
    (folder / "mine_node_attributes.txt").write_text(owner)  # an attribute that tells the graph
    tested: list[int] = []
    for fold in range(4):
        task = GraphClassification(data=str(folder), folds=4, fold=fold).load()
        parts = {}
        for split in task.splits:
            (batch,) = task.batches(split, 100)
            parts[split] = {*batch.inputs[0][:, -1].int().tolist()}
            assert abs(2 * int(batch.targets.sum()) - batch.samples) <= 2
        assert {*range(1, 62)} == set.union(*parts.values())
        assert sum(map(len, parts.values())) == 61 and len(parts["valid"]) in (4, 5)
        tested += parts["test"]
    assert sorted(tested) == [*range(1, 62)]


def test_folds_have_each_class_alike():
    targets = torch.tensor([0] * 365 + [1] * 102)
    fold = selection.assign_folds(targets, ("a", "b"), 10, 0)
    assert sorted(fold.bincount().tolist()) == [46] * 3 + [47] * 7
    assert {10, 11} == {*fold[targets == 1].bincount().tolist()}
    assert torch.equal(fold, selection.assign_folds(targets, ("a", "b"), 10, 0))
    assert not torch.equal(fold, selection.assign_folds(targets, ("a", "b"), 10, 1))
    with pytest.raises(ValueError, match="only 2 of class b: take fewer folds"):
        selection.assign_folds(torch.tensor([0] * 9 + [1] * 2), ("a", "b"), 3, 0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"folds": 1}, "folds must be at least 2"),
        ({"fold": 10}, "there are 10 folds, counted from 0 to 9"),
        ({"valid": 1.0}, r"valid must lie in \(0, 1\)"),
    ],
)
def test_impossible_folds_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        GraphClassification(**options)


def test_other_classes_are_refused(tiny, tmp_path):
    folder = write_molecules(tmp_path / "mine")
    GraphClassification(data=str(folder)).load().save(tmp_path)
    labels = folder / "mine_graph_labels.txt"
    labels.write_text(labels.read_text().replace("0", "7"))
    with pytest.raises(DataError, match="has the classes 1, 7, and the run's data have 0, 1"):
        GraphClassification(data=str(folder)).load_other(tmp_path)
    (tmp_path / "graphs.json").write_text("{}")
    with pytest.raises(DataError, match=r"graphs\.json is damaged"):
        GraphClassification(data=str(folder)).load_other(tmp_path)


@pytest.mark.parametrize("kind", ["nodes", "graphs"])
def test_memory_export_and_ensembles(tiny, tmp_path, kind, capsys):
    own: dict[str, Any] = {"name": "graph_classification", "data": str(tmp_path / "mine")}
    if kind == "nodes":
        path = str(two_rings(tmp_path / "mine.npz"))
        own = {"name": "node_classification", "data": path, "normalize": False}
    else:
        write_molecules(tmp_path / "mine")
    run = run_of(tmp_path, recipe(own, epochs=1, epoch_steps=1))
    loaded = load(run)
    batch = loaded.data.sample("train", 2)
    points = measure(loaded.model, loaded.data, batch, depths=(1, 4))
    assert [point.kind for point in points] == ["deq"] * 2 + ["unrolled"] * 2 + ["checkpointed"] * 2
    assert all(point.bytes > 0 for point in points)
    assert main(["export", str(run), "--format", "pt2"]) == 1
    assert "numbers of nodes and edges differ" in capsys.readouterr().err
    found = examine_start(
        loaded.recipe, loaded.data, ensembles=("gaussian",), scales=(0.3,), draws=1
    )
    assert (found.samples, found.entries) == (1, 8 * (60 if kind == "nodes" else 246))


# --- what both have in common --------------------------------------------------------------------


def test_a_model_takes_its_sizes_from_the_data(tmp_path):
    task = node_task(tmp_path, normalize=False)
    config = task.complete(GraphConfig())
    assert isinstance(config, GraphConfig)
    assert (config.shape, config.classes, config.level) == ((3,), 2, "node")
    with pytest.raises(ValueError, match=r"model\.classes is 5, and g has 2"):
        task.complete(GraphConfig(classes=5))
    with pytest.raises(ValueError, match=r"model\.level is graph, and g has node"):
        task.complete(GraphConfig(level="graph"))
    with pytest.raises(ValueError, match="DenseConfig describes no network for graphs"):
        task.complete(DenseConfig())


def trainer_of(tmp_path, tree):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(tree))
    chosen = recipes.load(str(tmp_path / "r.yaml"))
    return Trainer(chosen, chosen.task.load(), Accelerator(cpu=True))


def test_parts_of_a_batch_add_up_to_its_gradient(tiny, tmp_path):
    task = {"name": "graph_classification", "data": str(write_molecules(tmp_path / "mine"))}
    exact = {"solver": {**SOLVER, "rtol": 1e-6, "max_evals": 100}, "batch_size": 24}
    exact["optimizer"] = {"name": "SGD", "lr": 1.0}
    found = []
    for accumulate in (1, 3):
        trainer = trainer_of(tmp_path, recipe(task, **exact, accumulate=accumulate))
        trainer.train_step()
        found.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
        assert trainer.tally.units == 24 and trainer.tally.forward.status["CONVERGED"] == 24
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_one_graph_is_not_divided(tiny, tmp_path):
    path = str(two_rings(tmp_path / "g.npz"))
    task = {"name": "node_classification", "data": path, "normalize": False}
    with pytest.raises(TrainingError, match="accumulate is 2, more than the 1 rows of a batch"):
        trainer_of(tmp_path, recipe(task, accumulate=2))
    with pytest.raises(TrainingError, match="batch_size is 2 but the run has only 1 training"):
        trainer_of(tmp_path, recipe(task, batch_size=2))
    trainer = trainer_of(tmp_path, recipe(task))
    assert len([*trainer.task.batches("test", 4, Part(1, 2))]) == 0  # the other process has it


def test_processes_share_the_graphs_of_a_batch(tmp_path):
    task = GraphClassification(data=str(write_molecules(tmp_path / "mine")), valid=None).load()
    feed = task.feed(10, 0)
    whole, *parts = (feed.batch(3, part) for part in (Part(), Part(0, 2), Part(1, 2)))
    assert [part.samples for part in parts] == [5, 5]
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    assert torch.equal(torch.cat([part.inputs[0] for part in parts]), whole.inputs[0])
    evaluated = [b for k in range(3) for b in task.batches("test", 2, Part(k, 3))]
    assert sum(batch.samples for batch in evaluated) == len(task.samples["test"])
