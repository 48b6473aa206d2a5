"""A run on a text that was killed and resumed is the run that was not, bit for bit.

With dropout, what is carried over, a shallow beginning, the Jacobian penalty with its controller,
and the correction.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from equilibria.train.folder import RunError
from equilibria.train.loop import Interrupted, fit

UNTIMED = {"seconds": 0, "throughput": {}}


class Killed(Exception):
    """Stands for whatever ends a process."""


@pytest.fixture
def everything(language):
    """A recipe with all that has a state."""
    controller = {"name": "EvaluationBudget", "evals": 3, "every": 3}
    language["regulariser"] |= {"final_gamma": 0.3, "stairs": 2, "controller": controller}
    language["correction"] = {"name": "FixedPointCorrection"}
    language["schedule"] = {"name": "Cosine", "warmup": 0.2}
    language["task"]["length"] = 20  # three steps a pass
    return language


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def assert_same(one, other):
    """Two trainers and their folders are the same to the last bit."""
    (a, here), (b, there) = one, other
    state, expected = a.model.state_dict(), b.model.state_dict()
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    assert all(torch.equal(x, y) for x, y in zip(leaves(a.carry), leaves(b.carry), strict=True))
    assert a.stabiliser.state() == b.stabiliser.state()
    assert torch.equal(torch.get_rng_state(), b.end)
    for x, y in zip(here.read_metrics(), there.read_metrics(), strict=True):
        assert x | UNTIMED == y | UNTIMED
    assert json.loads(here.evaluation.read_text()) == json.loads(there.evaluation.read_text())
    weights, others = load_file(here.weights), load_file(there.weights)
    assert all(torch.equal(weights[key], others[key]) for key in others)


@pytest.fixture
def whole(make, quiet, everything):
    """The run that nothing interrupts."""
    trainer, folder = make("whole", tree=everything)
    assert trainer.feed.steps == 3
    fit(trainer, folder, quiet)
    trainer.end = torch.get_rng_state()
    return trainer, folder


def kill_at(trainer, step):
    """End the trainer in the middle of a step (from 1)."""
    loss = trainer.task.loss

    def broken(model, output, targets):
        if trainer.model.training and trainer.step + 1 == step:
            raise Killed
        return loss(model, output, targets)

    trainer.task.loss = broken


def test_killed_several_times_and_resumed_equals_uninterrupted(make, quiet, everything, whole):
    """Among the steps are the last shallow one, the first of a pass, and random others."""
    trainer, folder = make("broken", tree=everything)
    for step in sorted({2, 4, 7, *random.Random(0).sample(range(1, 13), 3)}):
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


DYING = """
import os, signal, sys
from equilibria.cli.main import main
from equilibria.train.trainer import Trainer

step, (number, at), argv = Trainer.train_step, map(int, sys.argv[1:3]), sys.argv[3:]

def dying(self):
    if self.step + 1 == at:
        os.kill(os.getpid(), number)
    step(self)

Trainer.train_step = dying
sys.exit(main(argv))
"""


def test_a_process_killed_twice_equals_uninterrupted(make, quiet, everything, whole, tmp_path):
    """SIGKILL leaves the last checkpoint; SIGTERM saves the step that it falls into."""
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(everything))
    for number, step, code in ((signal.SIGKILL, 6, -signal.SIGKILL), (signal.SIGTERM, 9, 75)):
        command = [sys.executable, "-c", DYING, str(int(number)), str(step), "train", "own.yaml"]
        ended = subprocess.run(
            [*command, "--out", "process", *(["--resume"] if code == 75 else [])],
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert ended.returncode == code, ended.stderr
    trainer, folder = make("process", new=False, tree=everything)
    assert folder.checkpoints.all()[0].name.endswith("09")
    fit(trainer, folder, quiet, resume=True)
    assert_same((trainer, folder), whole)


@pytest.mark.parametrize("options", [("--seed", "1"), ("--model.inner", "20")])
def test_a_checkpoint_that_is_not_of_this_run_is_refused(make, quiet, everything, whole, options):
    trainer, folder = make("whole", new=False, tree=everything)
    other, its = make("other", *options, tree=everything)
    other.step = 12
    other.save(its)
    shutil.rmtree(folder.checkpoints.path)
    its.checkpoints.path.rename(folder.checkpoints.path)
    key = options[0].removeprefix("--")
    with pytest.raises(RunError, match=f"of another recipe .*{key}: {options[1]} there") as caught:
        fit(trainer, folder, quiet, resume=True)
    assert str(folder.checkpoints.all()[0]) in str(caught.value)
    assert folder.read_metrics()[-1]["epoch"] == 3  # nothing was lost
