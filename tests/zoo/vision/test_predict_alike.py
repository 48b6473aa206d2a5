"""`predict` sees images as the run's evaluation has, and refuses what would mix predictions."""

import json
import shutil
import signal

import all_modes
import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run.data.storage import DataError
from equilibria.solve import Picard, fixed_point
from equilibria.zoo.io import layout
from equilibria.zoo.vision import predict as engine
from equilibria.zoo.vision.predict import _solve, sight
from equilibria.zoo.vision.task.classification import ImageClassification
from equilibria.zoo.vision.task.seen import IMAGES, ImageFormat
from equilibria.zoo.vision.task.segmentation import ImageSegmentation

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", [{}, {"crop": 0.5}, {"normalize": True}])
def test_a_classifier_sees_the_pixels_that_were_evaluated(tmp_path, options, channels):
    modes = ("rgb", "grey-alpha", "rgba", "palette", "cmyk", "turned-6", "jpeg", "one-bit")
    for k in range(16):
        suffix, save = all_modes.MODES[modes[k % 8]]
        path = tmp_path / "data" / ("train", "test")[k // 8] / "ab"[k % 2] / f"{k:02}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        save(all_modes.noise(k, ((40, 30), (25, 50), (18, 18))[k % 3]), path)
    data = str(tmp_path / "data")
    task = ImageClassification(data=data, size=16, channels=channels, **options).load()
    task.save(tmp_path)
    seen, (batch,) = ImageFormat.read(tmp_path / IMAGES), task.batches("test", 8)
    paths = [tmp_path / "data" / name for name in layout.read(tmp_path / "data").names["test"]]
    assert len(paths) == batch.samples == 8
    for path, expected in zip(paths, batch.inputs, strict=True):
        assert torch.allclose(sight(path, seen).pixels, expected, rtol=0, atol=1e-6), path.name


@pytest.mark.parametrize("size", [None, (20, 36)])
def test_a_network_for_masks_sees_the_pixels_that_were_evaluated(tmp_path, size):
    data = tmp_path / "data"
    (data / "masks").mkdir(parents=True)
    (data / "classes.txt").write_text("one\ntwo\n")
    paths = all_modes.write(data / "images", 4, ((24, 32),))
    for path in paths:
        Image.fromarray(np.eye(24, 32, dtype=np.uint8)).save(data / "masks" / f"{path.stem}.png")
    task = ImageSegmentation(data=str(data), size=size, channels=3, normalize=True).load()
    task.save(tmp_path)
    seen, test = ImageFormat.read(tmp_path / IMAGES), task.images["test"]
    (batch,) = task.batches("test", 8)
    for name, expected in zip(test.names, batch.inputs, strict=True):
        path = next(each for each in paths if each.stem == name)
        found = sight(path, seen)
        assert torch.allclose(found.pixels, expected, rtol=0, atol=1e-6)
        assert found.size == (24, 32)


def test_a_run_of_before_resize_was_written_is_read(tmp_path):
    old = {"source": "x", "labels": ["a", "b"], "shape": [3, 8, 8], "normalise": None}
    (tmp_path / IMAGES).write_text(json.dumps(old))
    all_modes.noise(0, (30, 20)).save(tmp_path / "a.png")
    seen = ImageFormat.read(tmp_path / IMAGES)
    assert (seen.kind, seen.resize, seen.colors) == ("classification", None, ())
    assert sight(tmp_path / "a.png", seen).pixels.shape == (3, 8, 8)


def test_classes_without_colours_are_a_damaged_run(predictors, tmp_path):
    content = json.loads((predictors["masks"] / IMAGES).read_text())
    content["colours"].pop()
    (tmp_path / IMAGES).write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"is damaged \(1 colours of 2 classes\)"):
        ImageFormat.read(tmp_path / IMAGES)


def test_other_predictions_are_not_mixed_in(predictors, predict, tmp_path, capsys):
    images, out, changed = (tmp_path / name for name in ("images", "out", "changed"))
    all_modes.write(images, 3, ((8, 8),))
    predict("classes", images, out=out)
    shutil.copytree(predictors["classes"], changed)
    (image, *_) = images.iterdir()
    for kind, words, place, message in (
        ("classes", ["--top", "2"], out, "with other options (top: 5; now: 2)"),
        ("masks", [], out, f"of another run, {predictors['classes']}"),
        (changed, [], out, "another run"),
        ("classes", [], images, str(images)),
        ("classes", [], image, "is a file: name a folder with --out"),
    ):
        predict(kind, images, *words, out=place, status=1)
        error = capsys.readouterr().err
        assert message in error and "bug" not in error
    rows = predict("classes", images, "--top", "2", "--overwrite", out=out)
    assert all(len(row["top"]) == 2 for row in rows)
    predict("classes", tmp_path / "nothing", out=out, status=1)


def test_options_without_effect_are_refused(predict, tmp_path, capsys):
    all_modes.write(tmp_path / "images", 1, ((8, 8),))
    for kind, words, message in (
        ("masks", ("--top", "2"), "--top is for classification"),
        ("classes", ("--no-overlays",), "--no-overlays is for segmentation"),
        ("masks", ("--scales", "1", "100"), "--scales are factors of height and width, above 0"),
    ):
        predict(kind, tmp_path / "images", *words, out=tmp_path / "out", status=1)
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_more_images_are_added_to_those_that_have_a_row(predict, tmp_path):
    images, out = tmp_path / "images", tmp_path / "out"
    all_modes.write(images, 2, ((8, 8),))
    before = predict("classes", images, out=out)
    all_modes.write(images, 5, ((8, 8),))
    after = predict("classes", images, out=out)
    assert after[:2] == before and len(after) == len({row["path"] for row in after}) == 5


def test_frames_start_at_the_equilibrium_before(predict, tmp_path):
    frames = tmp_path / "frames"
    frames.mkdir()
    for k in (10, 9, 2, 1):
        all_modes.noise(0, (24, 32)).save(frames / f"{k}.png")
    all_modes.noise(0, (30, 24)).save(frames / "11.png")
    all_modes.noise(0, (30, 24)).save(frames / "12.png")
    (frames / "3.png").write_bytes(b"")
    found, plain = (
        {row["path"]: row for row in predict("masks", frames, *words, out=tmp_path / name)}
        for name, words in (("video", ["--video"]), ("each", []))
    )
    numbers = [1, 2, 3, 9, 10, 11, 12]
    assert list(found) == [str(frames / f"{k}.png") for k in numbers]
    warm, cold = (
        {k: rows[str(frames / f"{k}.png")].get("evaluations", 0) for k in numbers}
        for rows in (found, plain)
    )
    # The same frame again is solved already; one of another size is solved from the start.
    assert all(found[str(frames / f"{k}.png")]["status"] == "CONVERGED" for k in numbers if k != 3)
    assert warm[3] == 0 and cold[1] > 3
    assert max(warm[2], warm[9], warm[10], warm[12]) <= 2
    assert abs(warm[1] - cold[1]) <= 1 and abs(warm[11] - cold[11]) <= 1


def test_a_row_tells_the_worst_of_several_solves():
    """Whichever comes first: the windows of an image end one by one."""

    def cell(z, x):
        return torch.where(x > 1, torch.inf, 0.9 * z + x)

    few, x = Picard(max_evals=3), torch.tensor([[1.0], [2.0]])
    good, short, bad = (
        fixed_point(cell, z0, x[k], solver=few)
        for z0, k in ((torch.full((1, 1), 10.0), [0]), (torch.zeros(1, 1), [0]), (x[1:], [1]))
    )
    rows = [_solve(order, 0) for order in ((good, short, bad), (bad, short, good), (short, good))]
    assert [row["status"] for row in rows] == ["NONFINITE", "NONFINITE", "MAX_EVALS"]
    assert rows[0]["evaluations"] == rows[1]["evaluations"] >= 5


def test_a_signal_stops_it_with_all_rows_saved(predict, tmp_path, monkeypatch, capsys):
    images, out = tmp_path / "images", tmp_path / "out"
    all_modes.write(images, 9, ((16, 24), (24, 16)))
    all_modes.write(tmp_path / "others", 3, ((8, 8),))
    predict("masks", tmp_path / "others", out=out)
    solved = []

    def stopping(*arguments):
        solved.append(arguments)
        if len(solved) == 2:
            signal.raise_signal(signal.SIGTERM)
        return _solve(*arguments)

    monkeypatch.setattr(engine, "_solve", stopping)
    capsys.readouterr()
    rows = predict("masks", images, out=out, status=75)
    said = " ".join(capsys.readouterr().err.split())
    assert "the same command continues" in said
    count = len(rows)
    assert 3 < count < 12 and f"stopped after {count - 3} of 9 images" in said
    assert (out / "predictions.csv").read_bytes().count(b"\n") == count + 1
