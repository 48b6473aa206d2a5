"""A run does not depend on who reads what it prints."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest
import yaml

from equilibria.train.folder import Folder

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from equilibria.cli.main import entry
from equilibria.train.trainer import Trainer

# As in a terminal: what was started in the background ignores these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
step = Trainer.train_step

def slow(self):
    step(self)
    if self.step == 7:
        Path("ready").touch()
        while not Path("go").exists():
            time.sleep(0.01)

Trainer.train_step = slow
entry()
"""


@pytest.fixture
def program(tree, tmp_path):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**tree, "epochs": 4}))
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, "program.py", "train", "own.yaml", "--out", "run"]


def at_seventh_step(tmp_path):
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)


def test_a_reader_that_goes_does_not_end_the_training(program, tmp_path):
    """Nor does the same Ctrl-C that ended the reader keep it from being saved."""
    process = subprocess.Popen(
        program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    at_seventh_step(tmp_path)
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert process.wait() == 75
    assert int(Folder(tmp_path / "run").checkpoints.all()[0].name) == 7


def test_a_terminal_that_is_closed_saves(program, tmp_path):
    master, slave = pty.openpty()
    process = subprocess.Popen(
        program, cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    at_seventh_step(tmp_path)
    os.close(master)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert process.wait() == 75
    assert int(Folder(tmp_path / "run").checkpoints.all()[0].name) == 7


def test_a_reader_that_has_seen_enough_ends_nothing(program, tmp_path):
    (tmp_path / "go").touch()
    words = " ".join(program)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{words} | head -1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert Folder(tmp_path / "run").concluded(20)
