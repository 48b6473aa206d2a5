"""A run folder is a stranger's: nothing in it is obeyed, waited for or believed."""

import json
import os
import shutil
import sys

import numpy
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from applications import needs
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


def test_brackets_in_a_folders_name_are_no_markup(run, prints, monkeypatch):
    monkeypatch.chdir(run.rename(run.with_name("[bold]a[red]")).parent)
    assert "[bold]a[red], 450 test samples" in prints("evaluate", "[bold]a[red]")


# --- names of files and folders that are not UTF-8 ------------------------------------------------


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode elsewhere")
BAD = os.fsdecode(b"caf\xe9")


def images(tmp_path, classes, file="{}.png", name="pictures"):
    draw = numpy.random.default_rng(0)
    for label in classes:
        (tmp_path / name / label).mkdir(parents=True)
        for number in range(20):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype="uint8")
            with (tmp_path / name / label / file.format(number)).open("wb") as png:
                Image.fromarray(pixels).save(png, "PNG")
    return "mdeq-images", str(tmp_path / name)


def a_class(tmp_path):
    return images(tmp_path, ("cat", BAD))


def a_picture(tmp_path):
    return images(tmp_path, ("cat", "dog"), BAD + "{}.png")


def sequences(tmp_path):
    for label in ("a", BAD):
        (tmp_path / "waves" / label).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "waves" / label / f"{number}.csv").write_text("1\n2\n3\n")
    return "sequences", str(tmp_path / "waves")


def the_folder(tmp_path):
    return images(tmp_path, ("cat", "dog"), name=BAD)


@LINUX
@pytest.mark.parametrize(
    "make", [a_class, a_picture, pytest.param(sequences, marks=needs("recurrent")), the_folder]
)
def test_data_with_a_name_that_is_not_utf8_are_refused_with_it(make, tmp_path, fails):
    recipe, folder = make(tmp_path)
    said = fails("train", recipe, "--data", folder, "--out", tmp_path / "r")
    assert r"caf\xe9" in said and "is not UTF-8: rename" in said
    assert not (tmp_path / "r").exists()


@LINUX
def test_a_run_folder_with_such_a_name_is_refused_with_it(digits_run, tmp_path, fails):
    folder = shutil.copytree(digits_run, tmp_path / BAD)
    assert r"caf\xe9 is not UTF-8: rename it" in fails("evaluate", folder)
