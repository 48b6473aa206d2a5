"""The scripts that wait for a GPU run here too, on tiny recipes, and go on where they stopped."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import tiny
from tiny import CELLS

from equilibria.train import memory as step_memory
from equilibria.train import recipe as recipes

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"


def script(name):
    if str(FOLDER) not in sys.path:  # as Python has it where the file is run
        sys.path.append(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def recipe(monkeypatch, tmp_path):
    tiny.shrink(monkeypatch, tmp_path)
    task = {
        "name": "language_modelling",
        "file": str(tmp_path / "text.txt"),
        "unit": "words",
        "length": 8,
    }
    return tiny.recipe(tmp_path, "lm", task, CELLS["transformer"])


def test_a_training_goes_on_call_by_call(recipe, tmp_path, capsys):
    language = script("language")
    language.main([recipe, "--budget", "0.00001", "--out", str(tmp_path / "o")])
    assert "The same command goes on." in capsys.readouterr().out
    assert not (tmp_path / "o" / "gpu-lm.json").exists()
    language.main([recipe, "--budget", "9", "--out", str(tmp_path / "o")])
    file = json.loads((tmp_path / "o" / "gpu-lm.json").read_text())
    *epochs, last = file["tables"][0]["rows"]
    assert [row[1] for row in epochs] == [1, 2] and last[1] == "test"
    assert all(row[6] > 0 for row in epochs) and last[3] > 1


def test_a_training_on_images_goes_on_call_by_call(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(step_memory, "DEPTHS", (3,))  # of the profiler
    task = {"name": "image_classification", "data": "digits", "samples": 20, "valid": 20}
    model = {"name": "mdeq", "channels": [4, 4], "head_channels": [2, 2], "final": 8, "groups": 2}
    recipe = tiny.recipe(tmp_path, "images", task, model, eval_batch_size=500)
    vision = script("vision")
    vision.main([recipe, "--budget", "0.00001", "--out", str(tmp_path / "o")])
    assert "The same command goes on." in capsys.readouterr().out
    vision.main([recipe, "--budget", "9", "--out", str(tmp_path / "o")])
    (table,) = json.loads((tmp_path / "o" / "gpu-images.json").read_text())["tables"]
    *epochs, last = table["rows"]
    assert [row[1] for row in epochs] == [1, 2] and last[1] == "test"
    assert all(0 <= row[3] <= 100 and row[6] > 0 for row in epochs)


def test_the_scripts_print_the_published_figures():
    vision = script("vision")
    shipped = vision.PUBLISHED
    assert shipped["mdeq-cifar10-small-gpu"] == 87.1 and shipped["mdeq-cifar10-gpu"] == 93.8
    assert shipped["mdeq-imagenet-small-jr-paper"] == 74.5
    assert shipped["mdeq-imagenet-large-jr-paper"] == 76.8
    assert shipped.keys() <= set(recipes.available())


def test_throughput_measures_every_network(recipe, tmp_path, monkeypatch):
    throughput = script("throughput")
    monkeypatch.setattr(throughput, "TURNS", 1)
    monkeypatch.setattr(throughput, "WARM", 1)
    options = ["--recipe", recipe, "--vocabulary", "30", "--tokens", "500"]
    options += ["--precision", "float32"]  # Accelerate takes one in a process
    throughput.main([*options, "--budget", "9", "--out", str(tmp_path / "o")])
    (table,) = json.loads((tmp_path / "o" / "gpu-throughput-float32.json").read_text())["tables"]
    names = [row[0] for row in table["rows"]]
    assert len(names) == 7 and {"deq", "deq-30", "tied-18-checkpointed"} <= set(names)
    assert all(isinstance(row[1], float) and row[1] > 0 and row[2] > 0 for row in table["rows"])
    assert all(row[4] > 0 and row[5] > 0 for row in table["rows"])  # the stack being 1
    place = table["columns"].index("evaluations, mean")
    evals = {row[0]: row[place] for row in table["rows"]}
    assert evals["deq-12"] == 12 and evals["tied-12"] is None


def test_made_up_text_follows_zipf():
    corpus = script("throughput").Corpus.of(1000, 100_000)
    counts = corpus.splits["train"].bincount(minlength=1000).double()
    assert len(counts) == 1000
    assert counts[0] / counts[10] == pytest.approx(12.7 / 2.7, rel=0.2)
