"""A run that was interrupted and resumed is the run that was not, bit for bit."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy
import pytest
import torch
import yaml
from safetensors.torch import load_file

from equilibria.solve import Anderson
from equilibria.train import checkpoint, files
from equilibria.train import recipe as recipes
from equilibria.train.checkpoint import CheckpointError
from equilibria.train.loop import Interrupted, fit
from equilibria.train.run import Folder, RunError


class Killed(Exception):
    """Stands for whatever ends a process."""


def break_at(trainer, step, action):
    """Let `action` happen instead of the loss of step `step` (from 1)."""
    loss = trainer.task.loss

    def broken(model, output, targets):
        if trainer.model.training and trainer.step + 1 == step:
            action()
        return loss(model, output, targets)

    trainer.task.loss = broken


def kill():
    raise Killed


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


def without_time(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


@pytest.fixture
def whole(make, quiet):
    """The run that nothing interrupts."""
    trainer, folder = make("whole", "--save_every", "3")
    fit(trainer, folder, quiet)
    return trainer, folder


@pytest.mark.parametrize("step", [1, 4, 6, 8], ids=lambda s: f"killed in step {s} of 10")
def test_killed_and_resumed_equals_uninterrupted(make, quiet, whole, weights, step):
    options = ("--save_every", "3")
    trainer, folder = make("broken", *options)
    break_at(trainer, step, kill)
    with pytest.raises(Killed):
        fit(trainer, folder, quiet)
    again, folder = make("broken", *options, new=False)
    fit(again, folder, quiet, resume=True)
    assert same(weights(again), weights(whole[0]))
    assert same(load_file(folder.weights), load_file(whole[1].weights))
    assert without_time(folder.read_metrics()) == without_time(whole[1].read_metrics())
    assert json.loads(folder.evaluation.read_text()) == json.loads(whole[1].evaluation.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_in_the_middle_of_an_epoch(make, quiet, whole, weights, number):
    trainer, folder = make("stopped", "--save_every", "3")
    break_at(trainer, 7, lambda: signal.raise_signal(number))
    with pytest.raises(Interrupted, match="--resume"):
        fit(trainer, folder, quiet)
    assert checkpoint.load_checkpoint(folder.checkpoint)["step"] == 7
    again, folder = make("stopped", "--save_every", "3", new=False)
    fit(again, folder, quiet, resume=True)
    assert same(weights(again), weights(whole[0]))
    assert without_time(folder.read_metrics()) == without_time(whole[1].read_metrics())


DYING = """
import os, signal, sys
from equilibria.cli.main import main
from equilibria.train.trainer import Trainer

step = Trainer.train_step

def dying(self):
    if self.step + 1 == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    step(self)

Trainer.train_step = dying
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_process_can_be_resumed(make, quiet, tree, whole, weights, tmp_path):
    """The same with a real process, ended by SIGKILL in its second epoch."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**tree, "save_every": 3}))
    died = subprocess.run(
        [sys.executable, "-c", DYING, "train", "tiny.yaml", "--out", "process"],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    again, folder = make("process", "--save_every", "3", new=False)
    fit(again, folder, quiet, resume=True)
    assert same(weights(again), weights(whole[0]))


def test_a_disk_that_fills_up_leaves_the_last_good_checkpoint(
    make, quiet, whole, weights, monkeypatch
):
    trainer, folder = make("full", "--save_every", "3")
    write = files.os.fsync

    def full(descriptor):
        if trainer.step == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fit(trainer, folder, quiet)
    monkeypatch.undo()
    assert checkpoint.load_checkpoint(folder.checkpoint)["step"] == 5
    assert not [p for p in folder.path.iterdir() if p.suffix == ".tmp"]
    again, folder = make("full", "--save_every", "3", new=False)
    fit(again, folder, quiet, resume=True)
    assert same(weights(again), weights(whole[0]))


def test_a_finished_run_is_left_as_it_is(make, whole, capsys):
    from rich.console import Console

    before = {p: p.stat().st_mtime_ns for p in whole[1].path.iterdir()}
    again, folder = make("whole", "--save_every", "3", new=False)
    fit(again, folder, Console(), resume=True)
    assert "is finished" in " ".join(capsys.readouterr().out.split())  # the path may fill a line
    assert {p: p.stat().st_mtime_ns for p in folder.path.iterdir()} == before


def test_another_recipe_cannot_resume(make, whole):
    other, folder = make("whole", "--optimiser.lr", "0.5", new=False)
    with pytest.raises(RunError, match=r"optimiser\.lr: 0\.01 there, 0\.5 here"):
        folder.check_same(other.recipe)


def test_a_run_from_before_the_default_had_a_name_of_its_own_goes_on(tree, tmp_path):
    """Its recipe calls the method Anderson, with a period of 3."""
    del tree["solver"]
    recipe = recipes.parse(tree)
    folder = Folder(tmp_path)
    folder.recipe.write_text(recipes.to_yaml(recipe).replace("AlternatingAnderson", "Anderson"))
    solver = folder.read_recipe().solver
    assert isinstance(solver, Anderson) and solver.period == 3
    folder.check_same(recipe)
    with pytest.raises(RunError, match=r"solver\.name: AlternatingAnderson there, Anderson here"):
        folder.check_same(recipes.parse(tree, ["--solver.name", "Anderson"]))


def test_other_data_are_refused(make, quiet, whole):
    trainer, folder = make("whole", "--save_every", "3", new=False)
    trainer.task.checksum = "sha256:0"
    with pytest.raises(RunError, match="started on other data"):
        fit(trainer, folder, quiet, resume=True)


def test_a_lost_checkpoint_does_not_cost_what_is_left_of_the_run(make, quiet, whole):
    trainer, folder = make("whole", "--save_every", "3", new=False)
    folder.checkpoint.unlink()
    before = {p: p.stat().st_mtime_ns for p in folder.path.iterdir()}
    with pytest.raises(RunError, match=r"checkpoint\.pt is missing"):
        fit(trainer, folder, quiet, resume=True)
    assert {p: p.stat().st_mtime_ns for p in folder.path.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_a_damaged_checkpoint_is_one_clear_error(make, quiet, whole, content):
    trainer, folder = make("whole", "--save_every", "3", new=False)
    whole_file = folder.checkpoint.read_bytes()
    folder.checkpoint.write_bytes(
        whole_file[: len(whole_file) // 2] if content is None else content
    )
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is damaged"):
        fit(trainer, folder, quiet, resume=True)


def test_a_checkpoint_is_not_unpickled(tmp_path):
    path = tmp_path / "checkpoint.pt"

    class Trap:
        def __reduce__(self):
            return time.sleep, (0.0,)

    torch.save({"version": 1, "trap": Trap()}, path)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load_checkpoint(path)


def test_all_random_generators_are_restored(tmp_path):
    def draw():
        return torch.rand(3).tolist(), numpy.random.rand(3).tolist(), random.random()

    random.gauss(0.0, 1.0)
    checkpoint.save_checkpoint(tmp_path / "c", {"random": checkpoint.random_state()})
    expected = draw()
    checkpoint.set_random_state(checkpoint.load_checkpoint(tmp_path / "c")["random"])
    assert draw() == expected
