"""`equilibria doctor`."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from equilibria.run.cli.main import main

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
