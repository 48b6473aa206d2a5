"""How the command line begins and ends: without its packages, and with a reader that has left."""

import os
import subprocess
import sys

import pytest

from equilibria.cli import extras
from equilibria.cli.main import COMMANDS, main


@pytest.mark.parametrize("command", [*COMMANDS, "trian"])
def test_a_command_without_its_extra_names_it_in_one_line(command, capsys, monkeypatch):
    real = extras.metadata.distributions
    absent = {"accelerate", "scikit-learn", "pandas"}
    monkeypatch.setattr(
        extras.metadata, "distributions", lambda name: () if name in absent else real(name=name)
    )
    for module in ("equilibria.train.config", f"equilibria.cli.{command}"):
        monkeypatch.setitem(sys.modules, module, None)  # as where one of its packages is not there
    assert main([command, "--help"]) == 1
    out, error = capsys.readouterr()
    extra = command if command in ("reproduce", "bench") else "cli"
    packages = "accelerate, scikit-learn" if extra == "cli" else "accelerate, pandas, scikit-learn"
    assert f"not installed ({packages}" in error
    assert f"[{extra}]'" in error and "pip install '/" in error  # of this checkout
    assert len(error.splitlines()) == 1 and not out


def test_a_word_that_is_none_of_the_right_ones_is_told_them(capsys):
    assert main(["reproduce", "--scale", "gpuu"]) == 1
    assert "Expected one of ['cpu', 'gpu']. Got value: gpuu" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["recipes"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_error(argv):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "equilibria", *argv]
    run = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert run.stderr == ""
    assert run.returncode in (0, 1)  # argparse itself takes a closed pipe for printed
