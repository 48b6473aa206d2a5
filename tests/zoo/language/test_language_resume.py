"""A run on a text that was killed and resumed is the run that was not, bit for bit.

With dropout, what is carried over, a shallow beginning, the Jacobian penalty with its controller,
and the correction.
"""

import copy
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from accelerate import Accelerator
from rich.console import Console
from safetensors.torch import load_file

import texts
from equilibria.run import recipe as recipes
from equilibria.run import resume
from equilibria.run.folder import Folder, RunError
from equilibria.run.loop import Interrupted, fit
from equilibria.run.trainer import Trainer
from several import ended, signalled

UNTIMED = {"seconds": 0, "throughput": {}}


class Killed(Exception):
    """Stands for whatever ends a process."""


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A recipe with all that has a state, and the run that nothing interrupts."""
    place = tmp_path_factory.mktemp("language")
    language = copy.deepcopy(texts.LANGUAGE)
    language["task"]["file"] = str(texts.write(place / "text.txt"))
    controller = {"name": "EvaluationBudget", "evals": 3, "every": 3}
    language["regularizer"] |= {"final_gamma": 0.3, "stairs": 2, "controller": controller}
    language["correction"] = {"name": "FixedPointCorrection"}
    language["schedule"] = {"name": "Cosine", "warmup": 0.2}
    language["task"]["length"] = 20  # three steps a pass
    recipe, folder = recipes.parse(language), Folder(place / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        trainer = Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))
        assert trainer.feed.steps == 3
        folder.create(trainer.recipe)
        fit(trainer, folder, Console(quiet=True))
    trainer.end = torch.get_rng_state()
    return language, (trainer, folder)


@pytest.fixture
def everything(once, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return copy.deepcopy(once[0])


@pytest.fixture
def whole(once):
    return once[1]


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def assert_same(one, other):
    """Two trainers and their folders are the same to the last bit."""
    (a, here), (b, there) = one, other
    state, expected = a.model.state_dict(), b.model.state_dict()
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    assert all(torch.equal(x, y) for x, y in zip(leaves(a.carry), leaves(b.carry), strict=True))
    assert a.stabilizer.state() == b.stabilizer.state()
    assert torch.equal(torch.get_rng_state(), b.end)
    for x, y in zip(here.read_metrics(), there.read_metrics(), strict=True):
        assert x | UNTIMED == y | UNTIMED
    assert json.loads(here.evaluation.read_text()) == json.loads(there.evaluation.read_text())
    weights, others = load_file(here.weights), load_file(there.weights)
    assert all(torch.equal(weights[key], others[key]) for key in others)


def kill_at(trainer, step):
    """End the trainer in the middle of a step (from 1)."""
    loss = trainer.task.loss

    def broken(model, output, targets):
        if trainer.model.training and trainer.step + 1 == step:
            raise Killed
        return loss(model, output, targets)

    trainer.task.loss = broken


def test_killed_several_times_and_resumed_equals_uninterrupted(make, quiet, everything, whole):
    """Among the steps are the last shallow one, the first of a pass and the last of all."""
    trainer, folder = make("broken", tree=everything)
    for step in (2, 4, 7, 12):
        kill_at(trainer, step)
        with pytest.raises(Killed):
            fit(trainer, folder, quiet, resume=True)
        trainer, folder = make("broken", new=False, tree=everything)
    fit(trainer, folder, quiet, resume=True)
    assert_same((trainer, folder), whole)


def test_a_stop_that_is_asked_for_saves_and_goes_on(make, quiet, everything, whole):
    trainer, folder = make("stopped", tree=everything)
    with pytest.raises(Interrupted, match="after step 5 of 12"):
        fit(trainer, folder, quiet, stop=lambda: trainer.step == 5)
    assert folder.checkpoints.all()[0].name.endswith("05")
    trainer, folder = make("stopped", new=False, tree=everything)
    fit(trainer, folder, quiet, resume=True)
    assert_same((trainer, folder), whole)


def test_a_probe_is_logged_and_changes_nothing(make, quiet, everything, whole):
    trainer, folder = make("probed", tree=everything)
    trainer.probe = lambda probed: {"step": probed.step, "noise": float(torch.rand(()))}
    fit(trainer, folder, quiet)
    assert [record["probe"]["step"] for record in folder.read_metrics()] == [4, 8, 12]
    for record, expected in zip(folder.read_metrics(), whole[1].read_metrics(), strict=True):
        del record["probe"]
        assert record | UNTIMED == expected | UNTIMED


def test_a_process_killed_twice_equals_uninterrupted(
    make, quiet, everything, whole, tmp_path, monkeypatch
):
    """SIGKILL leaves the last checkpoint; SIGTERM saves the step that it falls into."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(yaml.safe_dump(everything))
    words = ["train", "own.yaml", "--out", "process"]
    assert ended(signalled, signal.SIGKILL, 6, words) == -signal.SIGKILL
    assert ended(signalled, signal.SIGTERM, 9, [*words, "--resume"]) == 75
    trainer, folder = make("process", new=False, tree=everything)
    assert folder.checkpoints.all()[0].name.endswith("09")
    fit(trainer, folder, quiet, resume=True)
    assert_same((trainer, folder), whole)


@pytest.mark.parametrize("options", [("--seed", "1"), ("--model.inner", "20")])
def test_a_checkpoint_that_is_not_of_this_run_is_refused(
    make, quiet, everything, whole, options, tmp_path
):
    shutil.copytree(whole[1].path, tmp_path / "whole")
    trainer, folder = make("whole", new=False, tree=everything)
    other, its = make("other", *options, tree=everything)
    other.step = 12
    resume.save(other, its)
    shutil.rmtree(folder.checkpoints.path)
    its.checkpoints.path.rename(folder.checkpoints.path)
    key = options[0].removeprefix("--")
    with pytest.raises(RunError, match=f"of another recipe .*{key}: {options[1]} there") as caught:
        fit(trainer, folder, quiet, resume=True)
    assert str(folder.checkpoints.all()[0]) in str(caught.value)
    assert folder.read_metrics()[-1]["epoch"] == 3  # nothing was lost
