"""A run folder is a stranger's: nothing in it is obeyed, waited for or believed."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from equilibria.run.cli.main import main

RED = "\x1b[31m"
"""What turns the text of a terminal red."""


@pytest.fixture
def run(digits_run, tmp_path):
    """A copy of a run that has been trained, for a test to spoil."""
    return shutil.copytree(digits_run, tmp_path / "r")


def spoil_recipe(run):
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("name: dense", r'name: "\e[31mdense"'))
    return "evaluate", str(run)


def spoil_weights(run):
    path = run / "model.safetensors"
    save_file({**load_file(path), f"{RED}weight": load_file(path)["head.bias"]}, path)
    return "evaluate", str(run)


def spoil_name(run):
    return "evaluate", str(run.rename(run.with_name(f"r{RED}")))


def spoil_info(run):
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, "data": "other", "source": RED}))
    return "evaluate", str(run)


def mistype(run):
    return (f"{RED}evaluate",)


@pytest.mark.parametrize("spoil", [spoil_recipe, spoil_weights, spoil_name, spoil_info, mistype])
def test_no_control_character_reaches_the_terminal(spoil, run, capsys):
    main([*spoil(run)])
    told = "".join(capsys.readouterr())
    assert r"\x1b[31m" in told and "\x1b" not in told


def test_a_newline_in_a_folders_name_does_not_split_the_last_line(run, capsys):
    run = run.rename(run.with_name("a\nb"))
    assert main(["evaluate", str(run)]) == 0
    assert capsys.readouterr().out.endswith(r"/a\nb/evaluation.json" "\n")


def test_brackets_in_a_folders_name_are_no_markup(run, capsys, monkeypatch):
    monkeypatch.chdir(run.rename(run.with_name("[bold]a[red]")).parent)
    assert main(["evaluate", "[bold]a[red]"]) == 0
    assert "[bold]a[red], 450 test samples" in capsys.readouterr().out
