"""How a command ends: what it says when it fails, whose error it is, and its exit status."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from equilibria.run import examination
from equilibria.run.cli import evaluate, memory, recipes, report, status
from equilibria.run.cli import main as cli
from equilibria.run.cli.errors import LESS
from equilibria.run.cli.main import COMMANDS, main
from equilibria.run.config import ConfigError, as_chosen
from equilibria.run.run import RunError


def test_what_takes_less_memory_is_told_of_commands_that_there_are():
    assert LESS.keys() <= COMMANDS.keys()


def thrown(error):
    """A function of equilibria, as far as its file tells, that raises `error`."""
    space = {"error": error}
    exec(compile("def throw(): raise error", recipes.__file__, "exec"), space)
    return space["throw"]


@pytest.fixture
def ends(monkeypatch, capsys):
    """End `equilibria recipes` with an error and return its status and what it said."""

    def run(error, **environment):
        """`error` is an exception, or an expression that raises one in a file of equilibria."""
        what = error if isinstance(error, str) else "throw()"
        space = {"throw": thrown(error), "json": json}
        exec(compile(f"def fail(_): {what}", recipes.__file__, "exec"), space)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(recipes, "main", space["fail"])
        return main(["recipes"]), capsys.readouterr().err

    return run


@pytest.mark.parametrize("error", [RunError("runs/a is not a run"), ConfigError("seed: x")])
def test_an_error_meant_for_the_user_stands_alone(ends, error):
    assert ends(error) == (1, f"equilibria recipes: error: {error}\n")


@pytest.mark.parametrize(
    "error", ["int('x')", "list(zip([1], [], strict=True))", ValueError("a"), TypeError("b")]
)
def test_any_other_error_is_called_a_bug(ends, error):
    code, said = ends(error)
    assert code == 1 and "(a bug in equilibria; --debug shows where)" in said


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to ..."),
        RuntimeError("Storage size calculation overflowed with sizes=[4000000000, 4000000000]"),
    ],
)
def test_spent_memory_is_no_bug(ends, error):
    code, said = ends(error)
    assert code == 1 and "error: out of memory" in said and "bug" not in said
    assert ("(2.00 GiB more were asked for)" in said) == ("2.00" in str(error))


def test_a_lost_process_is_no_bug(ends):
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [::1]:2345")
    code, said = ends(lost, WORLD_SIZE="2", LOCAL_RANK="1", RANK="3")
    assert code == 1 and "process 3: error: another process of this run" in said
    assert "--resume" in said and "bug" not in said


def test_a_file_that_is_nested_too_deeply_is_no_bug(ends):
    code, said = ends("json.loads('[' * 200_000)")
    assert code == 1 and "JSON file is nested too deeply" in said and "bug" not in said


def test_an_error_in_a_file_of_ones_own_is_named_with_its_line(ends, tmp_path, monkeypatch):
    (tmp_path / "my_cell.py").write_text("def forward():\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, said = ends("__import__('my_cell').forward()")
    assert code == 1
    assert f"error: {tmp_path / 'my_cell.py'}, line 2: ZeroDivisionError: division by zero" in said


def test_a_package_that_is_missing_is_named(ends, monkeypatch):
    monkeypatch.setattr("equilibria.run.cli.errors.find_missing", lambda extra: [])
    code, said = ends(ModuleNotFoundError("No module named 'sharing'", name="sharing.more"))
    assert code == 1 and said.endswith("the package 'sharing' is not installed\n")


def test_of_several_processes_the_first_says_what_all_know(ends):
    error = RunError("runs/a is not a run")
    assert ends(error, WORLD_SIZE="2", LOCAL_RANK="1", RANK="1") == (1, "")
    assert ends(error, WORLD_SIZE="2", LOCAL_RANK="0", RANK="0")[1]
    assert "process 1: error: KeyError" in ends(KeyError("a"), LOCAL_RANK="1", RANK="1")[1]


def test_a_stop_that_was_saved_and_an_interrupt_are_no_errors(ends):
    class Saved(RunError):
        exit_status = status.SAVED

    Saved.__module__ = RunError.__module__
    assert ends(Saved("saved")) == (75, "equilibria recipes: saved\n")
    assert ends(KeyboardInterrupt()) == (130, "equilibria recipes: interrupted\n")


def test_only_errors_that_were_raised_on_purpose_become_those_of_a_choice():
    def refused():
        raise ValueError("use solver=eq.Broyden() or None")

    said = r"^adjoint: choose --solver.name Broyden or null$"
    with pytest.raises(ConfigError, match=said), as_chosen("adjoint"):
        refused()
    with pytest.raises(ValueError, match="invalid literal") as raised, as_chosen():
        int("x")
    assert not isinstance(raised.value, ConfigError)


def test_the_statuses_are_in_the_help(prints):
    out = prints("--help")
    assert all(f"\n  {code:<5}{text}\n" in out for code, text in status.MEANINGS.items())


# --- what ends a command from outside is said, and what it cannot write to is refused at once -----


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


def be_stopped(*_, **__):
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
    monkeypatch.setattr(module, work, be_stopped)
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
