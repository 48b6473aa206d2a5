"""The residual network that trains for as long as a run on one's own images."""

import itertools
import types

import pytest
import torch

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.loop import train
from equilibria.run.run import load
from equilibria.zoo.vision.model.explicit import ResNet
from papers.mdeq import images

TINY = (
    *("--task.data", "digits", "--task.samples", "40", "--task.size", "8", "--epochs", "2"),
    *("--model.channels", "[8]", "--model.head_channels", "[2]", "--model.groups", "2"),
    *("--model.final", "8", "--batch_size", "8", "--probes", "2", "--epoch_steps", "2"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("peer") / "run"
    train(recipes.load("mdeq-images", TINY), path)
    return load(path)


def test_its_time_is_asked_twice_and_the_mean_counts(run, monkeypatch):
    asked, seen, clock = iter([0.2, 0.4]), [], itertools.count()
    ticking = types.SimpleNamespace(perf_counter=lambda: 0.01 * next(clock))
    monkeypatch.setattr(images, "time", ticking)
    monkeypatch.setattr(ResNet, "constrain", lambda self: seen.append(torch.is_grad_enabled()))
    accelerator = evaluation.accelerator("float32", "cpu")
    _, about = images.train(run.recipe, run.data, accelerator, lambda: next(asked))
    assert about["seconds"] == pytest.approx(0.3, abs=0.011) and next(asked, None) is None
    assert seen and not any(seen)


def test_it_is_judged_and_leaves_the_run_and_the_generators_alone(run):
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    state = torch.get_rng_state()
    found = images.compare(run, "test")
    assert 0 <= found["accuracy"] <= 1 and found["seconds"] > 0 and found["epochs"] > 0
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, before[name])
