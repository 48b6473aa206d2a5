"""`equilibria completion`: what the scripts offer, asked of the shells themselves."""

import contextlib
import io
import shutil
import subprocess

import pytest

from equilibria.cli.main import COMMANDS, main
from equilibria.train import recipe as recipes

ASK = {
    "bash": (
        'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _equilibria; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    "fish": "source ./script; complete -C (string join -- ' ' $argv) | string split -f1 \\t",
}
ZSH = """
compdef() { }; compadd() { shift; print -l -- $@ }; _files() { }
source ./script; words=("$@"); CURRENT=$#; _equilibria
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """What a shell offers for the last of some words, which it may not have filtered yet."""
    folder, scripts = tmp_path_factory.mktemp("shell"), {}
    for name in ("digits", "books"):
        (folder / "runs" / name).mkdir(parents=True)
    (folder / "runs" / "digits" / "recipe.yaml").touch()

    def offered(shell, *words):
        if shutil.which(shell) is None:
            pytest.skip(f"{shell} is not installed")
        if shell not in scripts:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                assert main(["completion", shell]) == 0
            scripts[shell] = printed.getvalue()
        (folder / "script").write_text(scripts[shell])
        argv = {
            "bash": ["bash", "-c", ASK["bash"], "-", *words],
            "zsh": ["zsh", "-fc", ZSH, "-", *words],
            "fish": ["fish", "-Nc", ASK["fish"], *words],
        }[shell]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        assert not done.stderr
        return {word for word in done.stdout.split() if word.startswith(words[-1])}

    return offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_tab_completes_commands_recipes_runs_and_options(ask, shell):
    assert ask(shell, "equilibria", "re") == {c for c in COMMANDS if c.startswith("re")}
    offered = ask(shell, "equilibria", "train", "digits")
    assert offered == {name for name in recipes.available() if name.startswith("digits")}
    assert ask(shell, "equilibria", "doctor", "runs/d") - {"runs/digits/"} == {"runs/digits"}
    assert "runs/books" not in ask(shell, "equilibria", "evaluate", "runs/")
    assert ask(shell, "equilibria", "reproduce", "deq/g") == {"deq/growth"}
    keys = ask(shell, "equilibria", "train", "digits", "--quiet", "--regulariser.g")
    assert keys == {"--regulariser.gamma"}
    assert "--samples" in ask(shell, "equilibria", "doctor", "runs/digits", "--")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_value_of_an_option_is_left_to_the_shell(ask, shell):
    assert not ask(shell, "equilibria", "train", "digits", "--out", "d")
    assert ask(shell, "equilibria", "train", "--quiet", "d") == ask(
        shell, "equilibria", "train", "d"
    )


def test_an_unknown_shell_is_told_the_others(capsys):
    assert main(["completion", "csh"]) == 1
    assert "shell must be one of bash, zsh, fish; got 'csh'" in capsys.readouterr().err
