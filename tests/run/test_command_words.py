"""What is typed is refused before any work is done; what ends a process from outside is said."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from applications import needs
from equilibria.run import examination
from equilibria.run.cli import evaluate, memory, report
from equilibria.run.cli import main as cli
from equilibria.run.cli.main import main


@pytest.fixture
def run(digits_run, tmp_path):
    return str(shutil.copytree(digits_run, tmp_path / "r"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "digits", "--out", ""], "--out is empty"),
        (["train", "digits", "--data="], "--data is empty"),
        (["evaluate", ""], "an argument is empty"),
        (["report", "a", ""], "an argument is empty"),
    ],
)
def test_an_empty_name_names_nothing(words, message, capsys, tmp_path):
    assert main(words) == 1
    assert message in capsys.readouterr().err
    assert not os.listdir()


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["evaluate", "r", "--split", "test", "--split=train"], "--split"),
        (["train", "digits", "--batch-size", "8", "--batch_size=16"], "--batch-size"),
        (["train", "digits", "--model.width", "8", "--model.width", "8"], "--model.width"),
        (["report", "r", "--no-doctor", "--no-doctor"], "--no-doctor"),
    ],
)
def test_an_option_is_given_once(words, option, capsys):
    assert main(words) == 1
    assert f"{option} is given 2 times: give it once" in capsys.readouterr().err


def test_a_number_that_no_text_holds_is_refused(capsys):
    assert main(["train", "digits", "--model.width", f"1{'0' * 5000}"]) == 1
    assert "a bug" not in capsys.readouterr().err


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


@pytest.mark.parametrize("seed", ["-1", "4294967296", "9223372036854775808"])
@pytest.mark.parametrize(
    "words",
    [
        ["train", "digits", "--seeds"],
        pytest.param(["generate", "r", "--seed"], marks=needs("language")),
        ["doctor", "r", "--seed"],
        ["distil", "r", "--seed"],
    ],
)
def test_a_number_that_is_no_seed_is_told_those_that_are(words, seed, capsys, tmp_path):
    assert main([*words, seed]) == 1
    said = f"must be between 0 and 4,294,967,295; got {seed}"
    assert f"{words[-1]} {said}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["./k_a", "nowhere/k_a", "k_a"])
def test_a_folder_to_resume_that_is_not_there_is_named_as_it_was_typed(name, capsys):
    assert main(["train", name, "--resume"]) == 1
    assert f"there is no run folder {name} to resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--model.width", 10**23, "model.width: expected a whole number up to 4,294,967,295"),
        ("--epochs", 10**30, "epochs: expected a whole number up to 4,294,967,295"),
        ("--optimizer.lr", "1e400", "lr must be positive and finite; got inf"),
        ("--model.width", 4 * 10**9, "out of memory"),
    ],
)
def test_a_number_of_a_recipe_has_a_ceiling(option, value, message, capsys, tmp_path):
    assert main(["train", "digits", "--out", str(tmp_path / "r"), option, str(value)]) == 1
    assert message in (said := capsys.readouterr().err) and "bug" not in said
    assert not (tmp_path / "r").exists()


def ends(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("the signal did not arrive")


@pytest.mark.parametrize(
    ("command", "module", "work"),
    [
        ("gradients", examination, "compare"),
        ("memory", memory, "measure"),
        ("evaluate", evaluate, "measure"),
    ],
)
def test_a_signal_that_ends_a_command_is_said(command, module, work, run, monkeypatch, capsys):
    monkeypatch.setattr(module, work, ends)
    assert main([command, run]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == f"equilibria {command}: ended by SIGTERM\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("command", "module", "work"),
    [
        ("gradients", examination, "compare"),
        ("memory", memory, "measure"),
        ("evaluate", evaluate, "measure"),
        ("report", report, "_collect"),
        ("distil", report.run, "load"),
    ],
)
def test_a_run_that_cannot_be_written_is_refused_first(
    command, module, work, run, monkeypatch, capsys
):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, *how: str(path) != run and access(path, *how))
    monkeypatch.setattr(module, work, lambda *_, **__: pytest.fail("it has begun to work"))
    assert main([command, run]) == 1
    assert f"{run} cannot be written to" in capsys.readouterr().err


def test_a_closed_standard_output_is_an_output_that_nobody_reads():
    command = [sys.executable, "-m", "equilibria", "recipes"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
