"""`equilibria completion`: what the script offers, asked of the shell itself."""

import contextlib
import io
import shutil
import subprocess

import pytest

from equilibria.run import recipe as recipes
from equilibria.run.cli.main import commands, main

ASK = """
source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _shtab_equilibria 2>&-
printf "%s\\n" "${COMPREPLY[@]}"
"""


def script(shell):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["completion", shell]) == 0
    return printed.getvalue()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_tab_completes_commands_recipes_options_and_files(tmp_path):
    (tmp_path / "script").write_text(script("bash"))
    (tmp_path / "$(touch harm)").mkdir()

    def ask(*words):
        argv = ["bash", "-c", ASK, "-", "equilibria", *words]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
        return set(done.stdout.split("\n")) - {""}

    assert ask("re") == {c for c in commands() if c.startswith("re")}
    digits = {n for n in recipes.available() if n.startswith("digits")}
    assert ask("train", "digits") == ask("initialize", "digits") == digits
    assert ask("reproduce", "deq/g") == {"deq/growth"}
    for command in ("train", "initialize"):
        assert ask(command, "digits", "--regularizer.g") == {"--regularizer.gamma"}
    assert {"--samples", "--debug"} <= ask("doctor", "run", "--")
    assert ask("evaluate", "scr") == ask("train", "digits", "--out", "scr") == {"script"}
    assert ask("evaluate", "$") == {"$(touch harm)"} and not (tmp_path / "harm").exists()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_scripts_too(shell):
    text = script(shell)
    assert "digits-jr" in text and "regularizer.gamma" in text
