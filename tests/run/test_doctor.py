"""`equilibria doctor` and `equilibria gradients`."""

import contextlib
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from equilibria.run import recipe as recipes
from equilibria.run import run
from equilibria.run.cli.main import main
from equilibria.stability import comparison

TOPICS = {
    "Convergence",
    "Contraction",
    "Sensitivity",
    "Uniqueness",
    "Gradient",
    "Backward solve",
    "Error of the state",
    "Gradient's bound",
    "Depth",
}


@pytest.fixture(scope="module")
def folder(digits_run, tmp_path_factory):
    return Path(shutil.copytree(digits_run, tmp_path_factory.mktemp("doctor") / "digits"))


def test_findings_are_printed_and_stored(folder, capsys):
    assert main(["doctor", str(folder), "--samples", "20", "--starts", "2"]) == 0
    printed, shown = capsys.readouterr()
    stages = [line.partition(": ")[2] for line in shown.splitlines() if "Examining" in line]
    assert [stage[0] for stage in stages] == ["1", "2", "3", "4", "5"]
    stored = json.loads((folder / "doctor.json").read_text())
    assert {finding["topic"] for finding in stored["findings"]} == TOPICS
    assert stored["samples"] == 20 and stored["starts"]["count"] == 2
    assert stored["entries"] == 16 and stored["layer"] == "deq"
    assert stored["gradient"]["loss"] == "loss" and stored["gradient"]["cosine"] > 0.99
    assert stored["depth"]["metric"]["name"] == "accuracy"
    accuracies = [point["figure"] for point in stored["depth"]["points"]]
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)
    for topic in TOPICS:
        assert topic.split()[0] in printed
    assert "doctor.json" in printed


def test_examining_twice_gives_the_same(folder):
    stored = []
    for _ in range(2):
        assert main(["doctor", str(folder), "--samples", "12", "--starts", "1"]) == 0
        stored.append((folder / "doctor.json").read_text())
    assert stored[0] == stored[1]


@pytest.fixture
def spoilt(folder, tmp_path):
    """A copy whose weights a test may change."""
    return Path(shutil.copytree(folder, tmp_path / "digits"))


def change(folder, name, value):
    """Fill a tensor of a run's weights."""
    weights = load_file(folder / "model.safetensors")
    assert name in weights
    weights[name] = torch.full_like(weights[name], value)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("name", ["deq.cell.linear.parametrizations.weight.original", "head.bias"])
def test_weights_that_are_no_numbers_are_the_one_finding_and_exit_with_3(spoilt, name, capsys):
    change(spoilt, name, float("nan"))
    assert main(["doctor", str(spoilt), "--samples", "12"]) == 3
    printed = capsys.readouterr().out
    stored = json.loads((spoilt / "doctor.json").read_text())
    assert [finding["topic"] for finding in stored["findings"]] == ["Weights"]
    assert stored["broken"] == [name]
    assert "The weights hold NaN or infinity" in printed and " nan" not in printed


def test_a_network_at_chance_is_not_told_that_an_ordinary_layer_would_do(spoilt):
    change(spoilt, "head.weight", 0.0)  # the same answer to everything
    change(spoilt, "head.bias", 0.0)
    main(["doctor", str(spoilt), "--samples", "50", "--starts", "1"])
    stored = json.loads((spoilt / "doctor.json").read_text())
    depth = next(each for each in stored["findings"] if each["topic"] == "Depth")
    assert "no better than the same answers, exchanged among the samples" in depth["sentence"]
    assert "ordinary" not in depth["advice"]


# --- `equilibria gradients`: the table, the files, and what it refuses ----------------------------


pytestmark = pytest.mark.usefixtures("drawn_once")

ONE = ["--epochs", "1", "--task.samples", "200", "--model.width", "16", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients") / "run"
    assert main(["train", "digits", "--out", str(folder), *ONE]) == 0
    return folder


@pytest.fixture(scope="module")
def shown(trained):
    """What the command prints, with fewer adjoints, for time; its files are in `trained`."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(comparison, "SETTINGS", ((1, 1.0), (3, 1.0)))
        assert main(["gradients", str(trained), "--samples", "16", "--repeats", "1"]) == 0
    return printed.getvalue()


def test_it_shows_a_table_and_writes_figures_and_a_line_for_the_recipe(trained, shown):
    assert "NeumannPhantom(3, 1)" in shown and "JacobianFree" in shown
    stored = json.loads((trained / "gradients.json").read_text())
    assert stored["samples"] == 16
    assert stored["reference"] <= 1e-6
    assert len(stored["rows"]) == 5
    assert f"In the recipe: {stored['recipe_line']}\nAs options: --adjoint.name " in shown
    assert (trained / "gradients.svg").read_text().lstrip().startswith("<?xml")


def test_the_recommended_line_is_one_that_a_recipe_takes(trained, shown):
    yaml = pytest.importorskip("yaml")
    line = json.loads((trained / "gradients.json").read_text())["recipe_line"]
    adjoint = yaml.safe_load(line)["adjoint"]
    words = [f"--adjoint.{name}={value}" for name, value in adjoint.items()]
    assert type(recipes.load("digits", words).adjoint).__name__ == adjoint["name"]


def test_a_run_that_is_sure_is_judged_by_its_logits(trained, tmp_path, prints, monkeypatch):
    monkeypatch.setattr(comparison, "SETTINGS", ((1, 1.0), (5, 1.0)))
    folder = shutil.copytree(trained, tmp_path / "sure")
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(
        re.sub(r"label_smoothing: [\d.]+", "label_smoothing: 0", recipe)
    )
    target = int(run.load(folder).data.sample("train", 1).targets)
    weights = load_file(folder / "model.safetensors")
    weights["head.bias"][target] = 1e4
    save_file(weights, folder / "model.safetensors")
    shown = prints("gradients", folder, "--samples", 1, "--repeats", 1)
    assert "The gradient of the loss has vanished" in shown and "tighter" not in shown
    stored = json.loads((folder / "gradients.json").read_text())
    exact = next(row for row in stored["rows"] if row["exact"])
    assert stored["loss"] == "random projection" and exact["cosine"] > 0.99
    assert main(["doctor", str(folder), "--samples", "1", "--starts", "1"]) in (0, 3)
    findings = json.loads((folder / "doctor.json").read_text())["findings"]
    gradient = next(each for each in findings if each["topic"] == "Gradient")
    assert gradient["severity"] == "healthy"


def test_the_page_of_the_run_shows_them_until_it_is_trained_on(trained, shown):
    words = ["report", str(trained), "--no-doctor", "--no-gallery", "--quiet"]
    assert main(words) == 0
    page = (trained / "report.html").read_text()
    stored = json.loads((trained / "gradients.json").read_text())
    assert "<h2>Gradients</h2>" in page and stored["sentence"] in page
    assert "<td>NeumannPhantom(3, 1)</td>" in page.replace('<th scope="row">', "<td>").replace(
        "</th>", "</td>"
    )
    (trained / "gradients.json").write_text(json.dumps({**stored, "weights": "of others"}))
    assert main(words) == 0
    assert "<h2>Gradients</h2>" not in (trained / "report.html").read_text()


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_file_is_named(trained, fails, content):
    (trained / "gradients.json").write_text(content)
    message = fails("report", trained, "--no-doctor", "--no-gallery")
    assert "gradients.json is damaged" in message
    (trained / "gradients.json").unlink()
