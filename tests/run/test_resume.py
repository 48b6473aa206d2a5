"""A run that was interrupted and resumed is the run that was not, bit for bit."""

import errno
import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import time
from pathlib import Path

import numpy
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from equilibria import files
from equilibria.run import checkpoint, processes, stops
from equilibria.run import recipe as recipes
from equilibria.run.checkpoint import CheckpointError, Checkpoints
from equilibria.run.loop import Interrupted, fit
from equilibria.run.resume import restore
from equilibria.run.run import Folder, RunError
from equilibria.run.trainer import Trainer
from equilibria.solve import Anderson
from several import ended, signalled

EVERY = ("--checkpoint.every", "3")


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


def steps_of(folder):
    """Return the steps of all checkpoints, the newest first."""
    return [int(path.name) for path in folder.checkpoints.all()]


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


def without_time(records):
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "throughput")}
        for record in records
    ]


def ended_alike(one, other):
    """Two runs, each its weights and its folder, are the same to the last bit."""
    (weights, folder), (expected, there) = one, other
    assert same(weights, expected)
    assert same(load_file(folder.weights), load_file(there.weights))
    assert without_time(folder.read_metrics()) == without_time(there.read_metrics())
    assert json.loads(folder.evaluation.read_text()) == json.loads(there.evaluation.read_text())


@pytest.fixture
def resume(make, quiet, weights):
    """resume(name) -> the weights and the folder of a run that goes on to its end."""

    def run(name, console=quiet):
        trainer, folder = make(name, *EVERY, new=False)
        fit(trainer, folder, console, resume=True)
        return weights(trainer), folder

    return run


@pytest.mark.parametrize("step", [4, 6], ids=lambda s: f"killed in step {s} of 10")
def test_killed_and_resumed_equals_uninterrupted(make, quiet, whole, resume, step):
    trainer, folder = make("broken", *EVERY)
    break_at(trainer, step, kill)
    with pytest.raises(Killed):
        fit(trainer, folder, quiet)
    ended_alike(resume("broken"), whole)


@pytest.fixture
def heeded():
    """All signals as in a terminal: a test run in the background would ignore some."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_saves_in_the_middle_of_an_epoch(make, quiet, whole, resume, number):
    trainer, folder = make("stopped", *EVERY)
    at = 7 if number == "SIGTERM" else 2
    break_at(trainer, at, lambda: signal.raise_signal(getattr(signal, number)))
    with pytest.raises(Interrupted, match=r"equilibria train \S+/stopped --resume") as stopped:
        fit(trainer, folder, quiet)
    assert stopped.value.exit_status == 75
    assert steps_of(folder) == ([7, 6] if at == 7 else [2])
    if at == 7:
        ended_alike(resume("stopped"), whole)


def test_a_killed_process_can_be_resumed(tree, whole, resume, tmp_path, monkeypatch):
    """The same with a real process, ended by SIGKILL in its second epoch."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump({**tree, "checkpoint": {"every": 3}}))
    words = ["train", "tiny.yaml", "--out", "process"]
    assert ended(signalled, signal.SIGKILL, 8, words) == -signal.SIGKILL
    ended_alike(resume("process"), whole)


def test_a_disk_that_fills_up_leaves_the_last_good_checkpoint(
    make, quiet, whole, resume, monkeypatch
):
    trainer, folder = make("full", *EVERY)
    write = files.os.fsync

    def full(descriptor):
        if trainer.step == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fit(trainer, folder, quiet)
    monkeypatch.undo()
    assert steps_of(folder) == [5, 3]
    assert not list(folder.path.rglob("*.tmp"))
    assert same(resume("full")[0], whole[0])


def test_a_finished_run_is_left_as_it_is(whole, resume, capsys):
    before = {p: p.stat().st_mtime_ns for p in whole[1].path.iterdir()}
    _, folder = resume("whole", Console())
    assert "is finished" in " ".join(capsys.readouterr().out.split())  # the path may fill a line
    assert {p: p.stat().st_mtime_ns for p in folder.path.iterdir()} == before


def test_a_run_under_the_former_name_of_its_solver_goes_on(tree, tmp_path):
    tree["solver"] = {"name": "Anderson", "period": 3}
    recipe = recipes.parse(tree)
    folder = Folder(tmp_path)
    text = recipes.to_yaml(recipe).replace("name: Anderson", "name: AlternatingAnderson")
    folder.recipe.write_text(text)
    assert folder.read_recipe().solver == Anderson(period=3)
    folder.check_same(recipe)
    with pytest.raises(RunError, match=r"solver\.period: 3 there, 1 here"):
        folder.check_same(recipes.parse(tree, ["--solver.period", "1"]))


def test_other_data_are_refused(make, quiet, whole):
    trainer, folder = make("whole", *EVERY, new=False)
    trainer.task.checksum = "sha256:0"
    with pytest.raises(RunError, match=r"on other data .* there, Digits \(sha256:0\) here"):
        fit(trainer, folder, quiet, resume=True)


def test_a_lost_checkpoint_does_not_cost_what_is_left_of_the_run(whole, resume):
    folder = whole[1]
    shutil.rmtree(folder.checkpoints.path)
    before = {p: p.stat().st_mtime_ns for p in folder.path.iterdir()}
    with pytest.raises(RunError, match=r"has no checkpoint, though the run has model.safetensors"):
        resume("whole")
    assert {p: p.stat().st_mtime_ns for p in folder.path.iterdir()} == before


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_taken(whole, resume, capsys):
    newest, before = whole[1].checkpoints.all()
    flip(newest / "optimiser.pt", 8 * 5000)
    found, folder = resume("whole", Console(width=300))
    assert f"{newest} is damaged (optimiser.pt" in (said := capsys.readouterr().err)
    assert f"continues from {before}" in said
    assert same(found, whole[0])
    assert steps_of(folder) == [10, 9]
    folder.checkpoints.read(newest)  # it is whole again
    assert list(folder.checkpoints.path.glob("0000000010.damaged-*"))  # and nothing is lost


def test_no_flipped_bit_is_accepted(whole):
    """In any file of a checkpoint, its manifest included."""
    newest = whole[1].checkpoints.all()[0]
    draw, paths = random.Random(0), sorted(newest.iterdir())
    sizes = [path.stat().st_size for path in paths]
    for path in [*paths, *draw.choices(paths, sizes, k=26)]:
        content = path.read_bytes()
        flip(path, draw.randrange(8 * len(content)))
        with pytest.raises(CheckpointError, match="is damaged"):
            whole[1].checkpoints.read(newest)
        path.write_bytes(content)
    assert whole[1].checkpoints.read(newest).step == 10


@pytest.mark.parametrize("damage", ["empty", "cut", "gone", "no manifest"])
def test_where_every_checkpoint_is_damaged_that_is_one_clear_error(whole, resume, damage):
    folder = whole[1]
    for path in folder.checkpoints.all():
        part = path / ("checkpoint.json" if damage == "no manifest" else "processes.pt")
        content = part.read_bytes()
        part.unlink()
        if damage in ("empty", "cut"):
            part.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read") as caught:
        resume("whole")
    assert str(folder.checkpoints.all()[0]) in str(caught.value)


def test_as_many_checkpoints_are_kept_as_asked(fitted):
    options = ("--epochs", "1", "--epoch_steps", "4")
    _, folder = fitted("many", *options, "--checkpoint.keep", "3", "--checkpoint.every", "1")
    assert steps_of(folder) == [4, 3, 2]


def test_a_disk_that_cannot_be_read_gives_nothing_up(whole, monkeypatch):
    """It may pass: the newest checkpoint is not taken for damaged."""

    def failing(path, most):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoint, "read_bytes", failing)
    with pytest.raises(CheckpointError, match="cannot be read"):
        whole[1].checkpoints.newest(print)


def test_weights_that_share_memory_are_saved(tmp_path):
    weight = torch.arange(3.0)
    found = Checkpoints(tmp_path / "checkpoints")
    found.save(1, {}, {"one": weight, "other": weight}, {})
    assert torch.equal(found.newest(print).model["other"], weight)


def test_a_run_is_extended_once_it_has_finished(make, quiet):
    trainer, folder = make("short")
    with pytest.raises(Interrupted):
        fit(trainer, folder, quiet, stop=lambda: trainer.step == 3)
    again = Trainer(trainer.recipe.extend_by(1), trainer.task, trainer.accelerator)
    with pytest.raises(RunError, match="has not finished its 2 epochs yet: first continue it with"):
        fit(again, folder, quiet, resume=True)


@pytest.mark.parametrize("place", ["evaluate", "radius"])
def test_a_signal_in_the_last_evaluation_ends_it_and_it_is_made_later(
    make, quiet, whole, resume, place, monkeypatch, tmp_path
):
    shutil.copytree(tmp_path / "whole", tmp_path / "late")
    trainer, folder = make("late", *EVERY, new=False)
    folder.evaluation.unlink()
    usual = getattr(trainer, place)

    def stopped(*given, **options):
        signal.raise_signal(signal.SIGTERM)
        return usual(*given, **options)

    monkeypatch.setattr(trainer, place, stopped)
    with stops.catch() as signals, pytest.raises(Interrupted, match="all training so far is"):
        fit(trainer, folder, quiet, resume=True, signals=signals)
    assert not folder.evaluation.exists() and steps_of(folder)[0] == 10
    ended_alike(resume("late"), whole)


def test_a_signal_in_the_evaluation_of_the_last_epoch_is_not_lost(make, quiet):
    trainer, folder = make("late", *EVERY, "--epoch_steps", "2")
    finish = trainer.finish_epoch

    def stopped():
        if trainer.step == 4:
            signal.raise_signal(signal.SIGTERM)
        return finish()

    trainer.finish_epoch = stopped
    with pytest.raises(Interrupted, match="stopped after step 4 of 4; the run is saved"):
        fit(trainer, folder, quiet)
    assert not folder.evaluation.exists() and len(folder.read_metrics()) == 2


def test_a_checkpoint_of_an_abandoned_future_goes(tmp_path):
    """After a fallback, the damaged one is newer in name only."""
    found = Checkpoints(tmp_path / "checkpoints")
    for step in (3, 6, 4):
        found.save(step, {}, {"x": torch.zeros(1)}, {})
    assert [int(path.name) for path in found.all()] == [4, 3]


def test_a_run_that_never_had_a_checkpoint_starts_again(make, quiet, whole, resume, capsys):
    """What else is in the folder is of the beginning that was lost."""
    trainer, folder = make("begun", *EVERY)
    break_at(trainer, 2, kill)
    with pytest.raises(Killed):
        fit(trainer, folder, quiet)
    assert folder.info.exists() and not folder.saved
    found, _ = resume("begun", Console(width=300))
    assert "has no checkpoint yet: it starts from the beginning" in capsys.readouterr().out
    assert same(found, whole[0])


def test_a_checkpoint_is_not_unpickled(whole):
    class Trap:
        def __reduce__(self):
            return time.sleep, (0.0,)

    found = whole[1].checkpoints
    found.save(11, {}, {}, {"trap": Trap()})
    with pytest.raises(CheckpointError, match=r"trap\.pt holds more than tensors") as caught:
        found.read(found.all()[0])
    assert "weights_only" not in str(caught.value)


def trap(about, path):
    """A pickle that runs a command, with the checksum that belongs to it."""
    (path / "optimiser.pt").write_bytes(pickle.dumps(Path("/").exists, 2))
    content = (path / "optimiser.pt").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    about["parts"]["optimiser.pt"] = {"bytes": len(content), "sha256": digest}


def outside(about, path):
    about["parts"]["../../../../../../etc/passwd"] = about["parts"]["optimiser.pt"]


def pipe(about, path):
    (path / "optimiser.pt").unlink()
    os.mkfifo(path / "optimiser.pt")


@pytest.mark.parametrize(
    "change",
    [trap, outside, pipe, {"step": "x"}, {"metrics": 5}, {"parts": ["optimiser.pt"]}],
    ids=["trap", "outside", "pipe", "step", "metrics", "parts"],
)
def test_a_checkpoint_that_was_signed_again_is_damaged_too(make, quiet, whole, capsys, change):
    trainer, folder = make("whole", *EVERY, new=False)
    newest, before = folder.checkpoints.all()
    about = json.loads((newest / "checkpoint.json").read_text())
    del about["sha256"]
    change(about, newest) if callable(change) else about.update(change)
    (newest / "checkpoint.json").write_bytes(checkpoint._sign(about))
    restore(trainer, folder, print)
    said = capsys.readouterr().out
    assert f"{newest} is damaged (" in said and f"continues from {before}" in said
    assert "weights_only" not in said and trainer.step == 9


def test_lack_of_memory_is_no_damage(whole, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 B")

    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(RuntimeError, match="can't allocate memory") as error:
        whole[1].checkpoints.newest(lambda message: None)
    assert not isinstance(error.value, CheckpointError)


@pytest.fixture
def signed_again(make, whole):
    """signed_again(parts, **about) restores a checkpoint of these parts, made of the newest one."""
    trainer, folder = make("whole", *EVERY, new=False)
    found = folder.checkpoints.newest(print)

    def restores(parts=found.parts, **about):
        kept = {name: found.about[name] for name in ("recipe", "data", "seconds", "metrics")}
        folder.checkpoints.save(11, kept | about, found.model, parts)
        restore(trainer, folder, print)

    return restores


def test_shares_outside_a_checkpoint_are_not_read(signed_again, whole):
    chunk = {"file": "../../pipe.safetensors", "key": "x", "offsets": [0], "sizes": [1]}
    os.mkfifo(whole[1].path / "pipe.safetensors")
    with pytest.raises(CheckpointError, match="is none of its files"):
        signed_again(shares={"x": {"dtype": "float32", "size": [1], "chunks": [chunk]}})


@pytest.mark.parametrize("processes", [None, 5, [{}]])
def test_what_does_not_fit_in_a_checkpoint_is_no_bug(signed_again, processes):
    parts = {} if processes is None else {"processes": processes, "optimiser": {}}
    with pytest.raises(CheckpointError, match="does not fit the model and the optimiser"):
        signed_again(parts)


@pytest.mark.parametrize("damage", ["empty", "zeros", "gone", "later epochs"])
def test_metrics_come_back_from_the_checkpoint_and_none_beyond_it(whole, resume, damage):
    folder = whole[1]
    before, lines = folder.read_metrics(), folder.metrics.read_bytes()
    more = json.dumps({**before[-1], "epoch": 3}) + '\n{"epoch": 4, "st'
    content = {"empty": b"", "zeros": b"\0" * 500, "later epochs": lines + more.encode()}
    folder.metrics.unlink()
    if damage in content:
        folder.metrics.write_bytes(content[damage])
    assert resume("whole")[1].read_metrics() == before


def test_an_extended_run_is_the_run_of_its_recipe(fitted, tree, weights, capsys):
    """Bit for bit, its schedule starting again; and it says so."""
    tree |= {"schedule": {"name": "Cosine", "warmup": 0.3}, "pretrain": None}
    tree["regularizer"] = {"name": "JacobianPenalty", "probability": 0.3, "final_probability": 0.8}
    tree["epoch_steps"] = 3
    at_once, folder = fitted("at-once", "--epochs", "3", "--restarts", "[2]", tree=tree)
    first, folder = fitted("extended", tree=tree)
    alone = weights(first)
    longer = first.recipe.extend_by(1)
    assert longer.restarts == (2,) and longer.epochs == 3
    folder.check_same(longer)
    again = Trainer(longer, first.task, first.accelerator)
    fit(again, folder, Console(width=300), resume=True)
    said = capsys.readouterr().out
    assert "restarting the learning rate's Cosine schedule and the regulariser's ramp" in said
    assert not same(weights(again), alone)
    assert same(weights(again), weights(at_once))
    assert [record["lr"] for record in again.records] == [
        record["lr"] for record in at_once.records
    ]
    assert folder.read_recipe() == longer
    info = folder.read_info()
    assert [(each["step"], each["epochs"]) for each in info["segments"]] == [(0, 2), (6, 3)]
    assert json.loads(folder.evaluation.read_text())["step"] == 9


def test_all_random_generators_are_restored():
    def draw():
        return torch.rand(3).tolist(), numpy.random.rand(3).tolist(), random.random()

    random.gauss(0.0, 1.0)
    state = json.loads(json.dumps(processes.random_state()))
    expected = draw()
    processes.set_random_state(state)
    assert draw() == expected
