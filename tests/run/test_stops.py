"""Two processes stop together: after a signal, when one dies, fails or sees a NaN; and go on.

Under ddp and under fsdp.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from equilibria.run.cli import errors
from equilibria.run.cli.main import main
from equilibria.run.trainer import Trainer
from several import ended


def program(what, words):
    """Be one process of a training, of which one does `what` at the thirteenth step."""
    step, rank = Trainer.train_step, int(os.environ["RANK"])

    def changed(self):
        if self.step == 12 and not Path("done").exists():  # after the first epoch
            if what == "term" and rank == 0:
                os.kill(os.getppid(), signal.SIGTERM)  # torchrun, which passes it on
                time.sleep(2)
            elif what == f"dies-{rank}":
                os.kill(os.getpid(), signal.SIGKILL)
            elif what == f"once-{rank}":
                Path("done").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            elif what == f"fails-{rank}":
                raise ValueError("nothing goes on like this")
            elif what == "nan" and rank == 1:
                loss = self.task.loss
                self.task.loss = lambda *given: loss(*given) * float("nan")
        step(self)

    explain = errors.explain

    def noted(command, error):  # each would end with it, though the first may say it for all
        text = explain(command, error)
        Path(f"message-{rank}").write_text(text)
        return text

    # A process that torchrun starts begins without handlers; a forked one has torchrun's own.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    torch.set_num_threads(1)
    Trainer.train_step, errors.explain = changed, noted
    status = main(words)
    Path(f"status-{rank}").write_text(str(status))
    sys.stderr.flush()
    if status:
        os._exit(status)


def launch(what, words, restarts):
    """Be torchrun, which starts two processes; they say their errors into a file."""
    os.dup2(os.open("errors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    config = LaunchConfig(
        *(1, 1, 2),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        # Torchrun must not end the other process before it has said what happened.
        monitor_interval=5.0 if what.startswith(("dies", "fails")) else 0.1,
        start_method="fork",
    )
    elastic_launch(config, program)(what, words)


@pytest.fixture
def two(tree, tmp_path, monkeypatch):
    """two(what, *words) -> how a training by two processes ended, of which one stops it."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(yaml.safe_dump({**tree, "epochs": 5, "epoch_steps": 3}))

    def run(what, *words, restarts=0):
        return ended(launch, what, ["train", *words], restarts)

    return run


def messages(place):
    """Return the message with which each process has ended."""
    return [(place / f"message-{rank}").read_text() for rank in (0, 1)]


def said():
    """Return the lines of the program itself: torchrun adds its own."""
    return re.findall(r"^.*equilibria train: .*$", Path("errors").read_text(), re.MULTILINE)


PARALLEL = pytest.mark.parametrize("parallel", ["ddp", "fsdp"])


@pytest.mark.slow
@PARALLEL
def test_a_signal_to_the_launcher_saves_and_the_run_goes_on(two, tmp_path, parallel):
    two("term", "own.yaml", "--out", "run", "--parallel", parallel)
    (line,) = said()
    assert "stopped in epoch 5 after step" in line and "equilibria train run --resume" in line
    assert "error" not in line
    assert [(tmp_path / f"status-{rank}").read_text() for rank in (0, 1)] == ["75", "75"]
    assert two("nothing", "run", "--resume") == 0
    assert (tmp_path / "run" / "evaluation.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "parallel"), [(0, "ddp"), (1, "fsdp")])
def test_when_a_process_dies_the_other_ends_and_says_so(two, tmp_path, rank, parallel):
    assert two(f"dies-{rank}", "own.yaml", "--out", "run", "--parallel", parallel) != 0
    (line,) = said()
    assert f"process {1 - rank}: error: " in line
    assert "another process exited" in line and "equilibria train run --resume" in line
    assert two("nothing", "run", "--resume") == 0


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "parallel"), [(0, "fsdp"), (1, "ddp")])
def test_when_a_process_fails_both_end_with_its_message(two, tmp_path, rank, parallel):
    assert two(f"fails-{rank}", "own.yaml", "--out", "run", "--parallel", parallel) != 0
    lines = said()
    assert lines and all("ValueError: nothing goes on like this" in line for line in lines)
    assert any(f"process {rank}" in line for line in lines)
    own, other = (messages(tmp_path)[each] for each in (rank, 1 - rank))
    assert other == f"process {rank}: ValueError: nothing goes on like this"
    assert re.fullmatch(r"\S+test_stops\.py, line \d+: ValueError: nothing goes on like this", own)


@pytest.mark.slow
@PARALLEL
def test_when_a_process_dies_torchrun_starts_them_again_and_they_end_alike(two, tmp_path, parallel):
    words = ("own.yaml", "--auto-resume", "--parallel", parallel, "--checkpoint.every", "5")
    assert two("nothing", *words, "--out", "whole") == 0
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    for rank in (0, 1):
        assert two(f"once-{rank}", *words, "--out", f"broken-{rank}", restarts=1) == 0
        (tmp_path / "done").unlink()
        broken = load_file(tmp_path / f"broken-{rank}" / "model.safetensors")
        assert all(torch.equal(value, broken[key]) for key, value in whole.items())


@pytest.mark.slow
@PARALLEL
def test_a_nan_on_one_process_ends_both_with_one_message(two, tmp_path, parallel):
    two("nan", "own.yaml", "--out", "run", "--parallel", parallel)
    (line,) = said()
    assert "the loss is nan at step 13" in line
    assert "The last good checkpoint is run/checkpoints/0000000012" in line
    one, other = messages(tmp_path)
    assert one == other and line.endswith(one)


@pytest.mark.slow
def test_a_second_writer_is_refused_on_all_processes(two, tmp_path):
    assert two("nothing", "own.yaml", "--out", "run") == 0
    two("nothing", "own.yaml", "--out", "run")
    (line,) = said()
    assert "already holds a run" in line
