"""`predict` on images of every mode, odd names and files that are none, and cut off anywhere."""

import csv
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import all_modes
import numpy as np
import predicting
import pytest
import torch
from PIL import Image

from equilibria.run import run as runs
from equilibria.run.data import load


def test_a_picture_of_any_mode_is_seen_alike(predictors, predict, tmp_path):
    inputs, _ = load("digits").test[:8]
    with torch.no_grad():
        logits = runs.load(predictors["classes"], data=False).model(inputs).output
    probabilities, labels = logits.softmax(1).max(1)
    for k, pixels in enumerate(inputs):
        image = Image.fromarray((255 * pixels[0]).round().byte().numpy())
        for name, (suffix, save) in all_modes.EXACT.items():
            save(image, tmp_path / f"{k}-{name}{suffix}")
    found = predict("classes", tmp_path, out=tmp_path / "out")
    assert len(found) == 8 * len(all_modes.EXACT)
    for row in found:
        name = Path(row["path"]).name
        assert row["label"] == str(int(labels[int(name[0])])), name
        assert row["probability"] == pytest.approx(float(probabilities[int(name[0])]), abs=0.02)


def test_masks_have_the_size_of_the_upright_image(predict, tmp_path):
    paths = all_modes.write(tmp_path / "images", len(all_modes.MODES), ((24, 40), (31, 18)))
    found = predict("masks", tmp_path / "images", out=tmp_path / "out")
    assert [row["path"] for row in found] == [str(path) for path in paths]
    for k, row in enumerate(found):
        size = ((24, 40), (31, 18))[k % 2]
        mask = predicting.pixels(tmp_path / "out" / row["mask"])
        with Image.open(tmp_path / "out" / row["overlay"]) as overlay:
            assert mask.shape == size == overlay.size[::-1], row["path"]
        assert mask.max() < 2 and sum(row["share"].values()) == pytest.approx(1, abs=1e-5)
        assert row["share"]["right"] == pytest.approx(mask.mean(), abs=1e-5)


@pytest.mark.parametrize("kind", predicting.KINDS)
def test_what_is_no_image_is_a_row(predict, tmp_path, kind):
    images = tmp_path / "images"
    broken = all_modes.broken(images)
    Image.fromarray(np.ones((9, 9), np.float32)).save(images / "floats.tif")
    os.mkfifo(images / "pipe.png")
    (images / "gone.png").symlink_to(tmp_path / "nothing")
    only = predict(kind, images, out=tmp_path / "only", status=1)
    assert [row["result"] for row in only] == ["error"] * (len(broken) + 3)
    all_modes.write(images, 6, ((16, 24), (20, 16)))
    found = predict(kind, images, out=tmp_path / "out")
    assert [row["result"] for row in found].count("ok") == 6
    for row in found:
        assert row["result"] == "ok" or row["path"] in row["error"]


def test_an_image_that_is_too_small_is_a_row(predict, tmp_path):
    images = tmp_path / "images"
    all_modes.write(images, 2, ((16, 24),))
    all_modes.noise(0, (3, 24)).save(images / "flat.png")
    found = {Path(row["path"]).name: row for row in predict("masks", images, out=tmp_path / "out")}
    assert [row["result"] for row in found.values()].count("ok") == 2
    assert "has 3 x 24 pixels, and the network needs 4 x 4" in found["flat.png"]["error"]
    classes = predict("classes", images / "flat.png", out=tmp_path / "classes")
    assert classes[0]["result"] == "ok"  # brought to the size of its digits


def test_paths_of_any_characters(predict, tmp_path):
    images, content = tmp_path / "images", all_modes.noise(0, (16, 16))
    names = (
        *("a, b.png", 'the "one".png', "two\nlines.png", "[1].png", "50 %.png", "2².png", "é.png"),
        *("same.png", "same.bmp", "other/same.png", "SAME.png", "same-2.png", f"{'n' * 250}.png"),
        os.fsdecode(b"\xff.png"),
    )
    (images / "other").mkdir(parents=True)
    for name in names:
        content.save(images / name)
    for kind in predicting.KINDS:
        out = tmp_path / f"out-{kind}"
        found = predict(kind, images, images / "[1].png", out=out)
        assert {row["path"] for row in found} == {str(images / name) for name in names}
        assert len(found) == len(names)
        with (out / "predictions.csv").open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        assert len(table) == len(names)
        masks = [row["mask"] for row in found if "mask" in row]
        assert len({mask.casefold() for mask in masks}) == len(masks)
        assert len(masks) == (len(names) if kind == "masks" else 0)
        assert all((out / mask).is_file() for mask in masks)


def test_an_image_that_is_named_twice_has_one_row(predict, tmp_path, monkeypatch):
    all_modes.write(tmp_path / "images", 3)
    monkeypatch.chdir(tmp_path)
    words = ["images", "./images", "images/*.png", tmp_path / "images", "images/../images"]
    assert len(predict("classes", *words, out=Path("out"))) == 3


def test_an_output_folder_among_the_images(predict, tmp_path):
    all_modes.write(tmp_path, 3)
    for _ in range(2):
        assert len(predict("masks", tmp_path, out=tmp_path / "out")) == 3


@pytest.mark.parametrize("kind", predicting.KINDS)
def test_rows_that_are_cut_off_anywhere_are_written_again(predict, tmp_path, kind):
    images, whole = tmp_path / "images", tmp_path / "whole"
    all_modes.write(images, 8, ((16, 24), (20, 16)))
    all_modes.broken(images / "broken")
    predict(kind, images, out=whole)
    size, draw = (whole / "predictions.jsonl").stat().st_size, random.Random(0)
    for number, length in enumerate((0, size - 1, *(draw.randrange(size) for _ in range(3)))):
        out = tmp_path / f"out-{number}"
        shutil.copytree(whole, out)
        os.truncate(out / "predictions.jsonl", length)
        (out / "predictions.csv").unlink()
        predict(kind, images, out=out)
        assert predicting.compared(out, whole) == ""


def test_pictures_that_are_lost_are_drawn_again(predict, tmp_path):
    images, out = tmp_path / "images", tmp_path / "out"
    all_modes.write(images, 4, ((16, 24),))
    before = predict("masks", images, out=out)
    (out / before[1]["mask"]).unlink()
    (out / before[2]["overlay"]).write_bytes(b"")
    after = predict("masks", images, out=out)
    assert sorted(row["path"] for row in after) == sorted(row["path"] for row in before)
    assert predicting.pixels(out / before[1]["mask"]).shape == (16, 24)
    assert (out / before[2]["overlay"]).stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("memory", "--images", "300"),
        ("random", "--kills", "6"),
        ("events", "--every", "3"),
        ("full", "--every", "3"),
    ],
    ids=lambda words: words[0],
)
def test_many_images_and_kills(words):
    program = Path(__file__).with_name("predicting.py")
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
