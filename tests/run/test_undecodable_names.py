"""Names of files and folders that are not UTF-8."""

import os
import shutil
import sys

import numpy
import pytest
from PIL import Image

from applications import needs
from equilibria.run.cli.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode elsewhere")
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


@pytest.mark.parametrize(
    "make", [a_class, a_picture, pytest.param(sequences, marks=needs("recurrent")), the_folder]
)
def test_data_with_a_name_that_is_not_utf8_are_refused_with_it(make, tmp_path, capsys):
    recipe, folder = make(tmp_path)
    assert main(["train", recipe, "--data", folder, "--out", str(tmp_path / "r")]) == 1
    said = capsys.readouterr().err
    assert r"caf\xe9" in said and "is not UTF-8: rename" in said
    assert not (tmp_path / "r").exists()


def test_a_run_folder_with_such_a_name_is_refused_with_it(digits_run, tmp_path, capsys):
    folder = shutil.copytree(digits_run, tmp_path / BAD)
    assert main(["evaluate", str(folder)]) == 1
    assert r"caf\xe9 is not UTF-8: rename it" in capsys.readouterr().err
