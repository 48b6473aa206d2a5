"""What ends a command from outside is said, and what it cannot write to is refused at once."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from equilibria.run import examination
from equilibria.run.cli import evaluate, memory, report
from equilibria.run.cli import main as cli
from equilibria.run.cli.main import main


@pytest.fixture
def run(digits_run, tmp_path):
    return str(shutil.copytree(digits_run, tmp_path / "r"))


def test_a_forked_process_ends_as_it_would(capfd):
    reader, writer = os.pipe()
    with cli._signals():
        child = os.fork()
        if not child:
            os.write(writer, b"ready")  # a signal that comes before is lost
            time.sleep(60)
            os._exit(1)
        os.read(reader, 5)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert "Traceback" not in capfd.readouterr().err


def ends(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("the signal did not arrive")


WORK = [
    ("gradients", examination, "compare"),
    ("memory", memory, "measure"),
    ("evaluate", evaluate, "measure"),
]
"""Commands, and what each of them calls to do its work."""


@pytest.mark.parametrize(("command", "module", "work"), WORK)
def test_a_signal_that_ends_a_command_is_said(command, module, work, run, monkeypatch, capsys):
    monkeypatch.setattr(module, work, ends)
    assert main([command, run]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == f"equilibria {command}: ended by SIGTERM\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("command", "module", "work"),
    [*WORK, ("report", report, "_collect"), ("distil", report.run, "load")],
)
def test_a_run_that_cannot_be_written_is_refused_first(
    command, module, work, run, monkeypatch, fails
):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, *how: str(path) != run and access(path, *how))
    monkeypatch.setattr(module, work, lambda *_, **__: pytest.fail("it has begun to work"))
    assert f"{run} cannot be written to" in fails(command, run)


def test_a_closed_standard_output_is_an_output_that_nobody_reads():
    command = [sys.executable, "-m", "equilibria", "recipes"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
