"""Two processes stop together: after a signal, when one dies, fails or sees a NaN; and go on.

Under ddp and under fsdp.
"""

import re
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from equilibria.cli import errors
from equilibria.cli.main import main
from equilibria.train.trainer import Trainer

what, *sys.argv[1:] = sys.argv[1:]
step, rank = Trainer.train_step, int(os.environ.get("RANK", "0"))

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

def noted(command, error):  # each process would end with it, though the first may say it for all
    text = explain(command, error)
    Path(f"message-{rank}").write_text(text)
    return text

Trainer.train_step, errors.explain = changed, noted
status = main()
Path(f"status-{rank}").write_text(str(status))
sys.stderr.flush()
os._exit(status)
"""


@pytest.fixture
def two(tree, tmp_path):
    """two(what, *words) -> how a training by two processes ended, of which one stops it."""
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**tree, "epochs": 6}))
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(what, *words, restarts=0):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command += ["--max-restarts", str(restarts)]
        command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint"]
        command += ["localhost:0", "program.py", what, "train", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )

    return run


def messages(place):
    """Return the message with which each process has ended."""
    return [(place / f"message-{rank}").read_text() for rank in (0, 1)]


def said(done):
    """Return the lines of the program itself: torchrun adds its own."""
    return re.findall(r"^.*equilibria train: .*$", done.stderr, re.MULTILINE)


PARALLEL = pytest.mark.parametrize("parallel", ["ddp", "fsdp"])


@pytest.mark.slow
@PARALLEL
def test_a_signal_to_the_launcher_saves_and_the_run_goes_on(two, tmp_path, parallel):
    done = two("term", "own.yaml", "--out", "run", "--parallel", parallel)
    (line,) = said(done)
    assert "stopped in epoch 3 after step" in line and "equilibria train run --resume" in line
    assert "error" not in line
    assert [(tmp_path / f"status-{rank}").read_text() for rank in (0, 1)] == ["75", "75"]
    done = two("nothing", "run", "--resume")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "evaluation.json").exists()


@pytest.mark.slow
@PARALLEL
@pytest.mark.parametrize("rank", [0, 1])
def test_when_a_process_dies_the_other_ends_and_says_so(two, tmp_path, rank, parallel):
    done = two(f"dies-{rank}", "own.yaml", "--out", "run", "--parallel", parallel)
    assert done.returncode != 0
    (line,) = said(done)
    assert f"process {1 - rank}: error: " in line
    assert "another process exited" in line and "equilibria train run --resume" in line
    assert two("nothing", "run", "--resume").returncode == 0


@pytest.mark.slow
@PARALLEL
@pytest.mark.parametrize("rank", [0, 1])
def test_when_a_process_fails_both_end_with_its_message(two, tmp_path, rank, parallel):
    done = two(f"fails-{rank}", "own.yaml", "--out", "run", "--parallel", parallel)
    assert done.returncode != 0
    lines = said(done)
    assert lines and all("ValueError: nothing goes on like this" in line for line in lines)
    assert any(f"process {rank}" in line for line in lines)
    own, other = (messages(tmp_path)[each] for each in (rank, 1 - rank))
    assert other == f"process {rank}: ValueError: nothing goes on like this"
    assert re.fullmatch(r"\S+program\.py, line \d+: ValueError: nothing goes on like this", own)


@pytest.mark.slow
@PARALLEL
@pytest.mark.parametrize("rank", [0, 1])
def test_when_a_process_dies_torchrun_starts_them_again_and_they_end_alike(
    two, tmp_path, rank, parallel
):
    words = ("own.yaml", "--auto-resume", "--parallel", parallel, "--checkpoint.every", "5")
    done = two("nothing", *words, "--out", "whole")
    assert done.returncode == 0, done.stderr
    done = two(f"once-{rank}", *words, "--out", "broken", restarts=1)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "done").exists()
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(value, other[key]) for key, value in one.items())


@pytest.mark.slow
@PARALLEL
def test_a_nan_on_one_process_ends_both_with_one_message(two, tmp_path, parallel):
    done = two("nan", "own.yaml", "--out", "run", "--parallel", parallel)
    (line,) = said(done)
    assert "the loss is nan at step 13" in line
    assert "The last good checkpoint is run/checkpoints/0000000010" in line
    one, other = messages(tmp_path)
    assert one == other and line.endswith(one)


@pytest.mark.slow
def test_a_second_writer_is_refused_on_all_processes(two, tmp_path):
    done = two("nothing", "own.yaml", "--out", "run")
    assert done.returncode == 0, done.stderr
    done = two("nothing", "own.yaml", "--out", "run")
    (line,) = said(done)
    assert "already holds a run" in line
