"""A run does not depend on who reads what it prints."""

import os
import pty
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import yaml

from equilibria.run.cli.main import entry
from equilibria.run.folder import Folder, is_concluded
from equilibria.run.trainer import Trainer
from several import forks, started


def program(words, session=False):
    """Train as a command in a terminal; after the seventh step, wait until there is "go".

    Errors go into a file.
    """
    # What was started in the background ignores these.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if session:
        os.setsid()
    os.dup2(os.open("errors", os.O_WRONLY | os.O_CREAT), 2)
    step = Trainer.train_step

    def slow(self):
        step(self)
        if self.step == 7:
            Path("ready").touch()
            while not Path("go").exists():
                time.sleep(0.01)

    Trainer.train_step = slow
    sys.argv = ["equilibria", *words]
    entry()


@pytest.fixture
def words(tree, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(yaml.safe_dump({**tree, "epochs": 4, "epoch_steps": 2}))
    return ["train", "own.yaml", "--out", "run"]


def interrupted_at_seventh_step(process, number, close):
    while not Path("ready").exists():
        assert process.is_alive()
        time.sleep(0.01)
    close()
    os.kill(process.pid, number)
    Path("go").touch()
    process.join()
    assert process.exitcode == 75
    assert int(Folder(Path("run")).checkpoints.all()[0].name) == 7


def test_a_reader_that_goes_does_not_end_the_training(words):
    """Nor does the same Ctrl-C that ended the reader keep it from being saved."""
    reader, writer = forks.Pipe(duplex=False)
    process = started(program, words, out=writer)
    interrupted_at_seventh_step(process, signal.SIGINT, reader.close)


def test_a_terminal_that_is_closed_saves(words):
    master, slave = pty.openpty()
    process = started(program, words, True, out=Connection(slave))
    interrupted_at_seventh_step(process, signal.SIGHUP, lambda: os.close(master))


def test_a_reader_that_has_seen_enough_ends_nothing(words):
    Path("go").touch()
    reader, writer = forks.Pipe(duplex=False)
    process = started(program, words, out=writer)
    os.read(reader.fileno(), 1)
    reader.close()
    process.join()
    assert process.exitcode == 0 and Path("errors").read_text() == ""
    assert is_concluded(Folder(Path("run")), 8)
