"""What a run on one's own images is compared with: logistic regression."""

import json

import pytest
import torch

from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.data import Split
from equilibria.run.loop import train
from equilibria.run.tasks import regression
from equilibria.zoo.vision.task import baselines

TINY = (
    *("--task.data", "digits", "--task.samples", "40", "--task.size", "8", "--epochs", "2"),
    *("--model.channels", "[8]", "--model.head_channels", "[2]", "--model.groups", "2"),
    *("--model.final", "8", "--batch_size", "8", "--probes", "2", "--epoch_steps", "2"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("linear") / "run"
    train(recipes.load("mdeq-images", TINY), path)
    return path


def test_evaluate_prints_it_beside_the_result(folder, capsys):
    assert main(["evaluate", str(folder)]) == 0
    found = json.loads((folder / "evaluation.json").read_text())["baseline"]
    assert found["name"] == "logistic regression on pixels"
    assert found["accuracy"] > 0.5  # forty digits are enough for that
    assert f"{100 * found['accuracy']:.2f} %" in capsys.readouterr().out


def test_it_can_be_left_out(folder):
    assert main(["evaluate", str(folder), "--no-baselines"]) == 0
    assert "baseline" not in json.loads((folder / "evaluation.json").read_text())


def test_other_images_are_compared_with_nothing(folder, capsys):
    assert main(["evaluate", str(folder), "--data", "mnist", "--no-baselines"]) in (0, 1)
    assert "is for language models" not in capsys.readouterr().err


def regress(train, classes):
    return regression.fit_regression(train, classes, baselines.read_pixels)


def images(count, classes=3):
    """Noise whose class is which third of the image is bright."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % classes
    inputs = 0.5 * torch.randn(count, 1, 6, 6, generator=random)
    for k, target in enumerate(targets.tolist()):
        inputs[k, :, 2 * target : 2 * target + 2] += 2.0
    return Split(inputs, targets)


def test_logistic_regression_tells_what_is_linear():
    found = regress(images(120), 3).figures(images(60))
    assert found["accuracy"] > 0.95


def correlated(count):
    """Two pixels with the same noise: the class is in their difference alone."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % 2
    noise = 0.4 * torch.randn(count, generator=random)
    pixels = torch.stack([0.1 * targets + noise, noise], 1)
    return Split(pixels.view(count, 1, 1, 2), targets)


def test_the_penalty_is_as_weak_as_the_images_want(monkeypatch):
    found = regress(correlated(400), 2)
    assert found.strength == 1.0 and found.figures(correlated(400))["accuracy"] > 0.9
    monkeypatch.setattr(regression, "STRENGTHS", (1e-5, 1e-4, 1e-3, 1e-2))
    assert regress(correlated(400), 2).figures(correlated(400))["accuracy"] < 0.7


def test_weaker_penalties_are_not_tried_after_two_that_are_worse(monkeypatch):
    scores, tried = (0.5, 0.7, 0.7, 0.6, 0.6, 0.9), []

    class Fitted:
        def __init__(self, strength):
            self.strength = strength

        def score(self, rows, targets):
            tried.append(self.strength)
            return scores[regression.STRENGTHS.index(self.strength)]

    monkeypatch.setattr(regression, "_fit", lambda rows, targets, strength, scale: Fitted(strength))
    assert regress(correlated(40), 2).strength == regression.STRENGTHS[1]
    assert tried == list(regression.STRENGTHS[:5])


def test_a_class_that_was_never_seen_is_never_told():
    few = images(40)
    seen = few.targets < 2
    found = regress(Split(few.inputs[seen], few.targets[seen]), 3).figures(few)
    assert found["accuracy"] <= float(seen.double().mean())


def test_large_images_are_brought_down_first():
    large = Split(torch.rand(12, 3, 80, 80), torch.arange(12) % 2)
    model = regress(large, 2)
    assert model.model.n_features_in_ == 3 * baselines.LARGEST**2
