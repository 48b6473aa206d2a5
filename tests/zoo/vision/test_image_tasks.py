"""Image classification: which images are chosen, their size, what is done to them at random."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from applications import needs
from equilibria.run import data
from equilibria.run.cli.main import main
from equilibria.run.data import DataError
from equilibria.run.tasks import Part
from equilibria.zoo.io import headers
from equilibria.zoo.io import image_files as files
from equilibria.zoo.io.decode import resize, weights
from equilibria.zoo.io.selection import apportion, stratify
from equilibria.zoo.vision.model.mdeq import MDEQConfig
from equilibria.zoo.vision.model.single_scale import DenseConfig
from equilibria.zoo.vision.predict import sight
from equilibria.zoo.vision.task.batches import ImageFeed
from equilibria.zoo.vision.task.classification import ImageClassification
from equilibria.zoo.vision.task.seen import ImageFormat

LABELS = ("a", "b", "c")
TARGETS = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100)]


@pytest.fixture
def folder(tmp_path):
    """Twenty images of each of two classes, of sizes from 20 to 40, in noise."""
    generator = np.random.default_rng(0)
    for place, label in enumerate(("cat", "dog")):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for number in range(20):
            size = generator.integers(20, 41, 2)
            noise = generator.integers(0, 128, (*size, 3)) + 127 * np.eye(3)[place].astype(int)
            path = tmp_path / "pets" / label / f"{number:02}.png"
            Image.fromarray(noise.astype(np.uint8)).save(path)
    return tmp_path / "pets"


# --- which images --------------------------------------------------------------------------------


def test_samples_are_balanced_and_those_set_aside_are_like_all():
    learned, aside = stratify(TARGETS, LABELS, 10, 30)
    assert TARGETS[aside].bincount().tolist() == [5, 3, 2]
    assert TARGETS[learned].bincount().tolist() == [10, 10, 10]
    assert not {*learned.tolist()} & {*aside.tolist()}
    assert learned.tolist() == sorted(learned.tolist())


def test_all_the_rest_is_learned_from():
    learned, aside = stratify(TARGETS, LABELS, 10, None)
    assert sorted([*learned.tolist(), *aside.tolist()]) == list(range(100))
    learned, aside = stratify(TARGETS, LABELS, None, None)
    assert (learned.tolist(), aside) == (list(range(100)), None)


def test_more_samples_contain_fewer_and_leave_those_set_aside():
    few, aside = stratify(TARGETS, LABELS, 10, 9)
    more, same = stratify(TARGETS, LABELS, 10, 32)
    assert {*few.tolist()} < {*more.tolist()} and torch.equal(aside, same)
    assert TARGETS[more].bincount().tolist() == [11, 11, 10]


@pytest.mark.parametrize(
    ("valid", "samples", "message"),
    [
        (98, None, r"valid is 98, but there are 100 training samples of 3 classes: at most 97"),
        (None, 90, r"samples is 90, 30 of class c, but there are 20 .* at most 60 samples"),
        (10, 60, r"samples is 60, 20 of class c, but there are 18 .* at most 54 samples"),
        (None, 2, r"samples is 2, but there are 3 classes"),
    ],
    ids=["valid", "samples", "both", "fewer-than-classes"],
)
def test_more_than_there_is(valid, samples, message):
    with pytest.raises(ValueError, match=message):
        stratify(TARGETS, LABELS, valid, samples)


@pytest.mark.parametrize("count", [1, 2, 7, 50, 96])
def test_shares_sum_up_and_leave_one_of_each(count):
    sizes = [60, 38, 1]
    found = apportion(sizes, count)
    assert sum(found) == count and all(f < s for f, s in zip(found, sizes, strict=True))


def test_a_task_of_some_digits():
    task = ImageClassification(data="digits", size=4, samples=100, valid=47).load()
    assert task.eval_split == "valid" and task.splits == ("train", "valid", "test")
    assert [len(task.samples[name]) for name in task.splits] == [100, 47, 450]
    assert task.samples["train"].targets.bincount().tolist() == [10] * 10
    assert (task.shape, task.source) == ((1, 4, 4), "Digits")
    assert task.sample("valid", 5).inputs.shape == (5, 1, 4, 4)


# --- size ----------------------------------------------------------------------------------------


def test_a_smaller_image_is_made_of_means():
    images = torch.rand(3, 2, 8, 8)
    expected = torch.nn.functional.avg_pool2d(images, 2)
    assert torch.allclose(resize(images, 4), expected, atol=1e-6)
    assert resize(images, 8) is images


@pytest.mark.parametrize("new", [1, 3, 5, 7, 9, 16])
def test_resizing_keeps_what_is_constant_and_the_mean(new):
    rows = weights(7, new)
    assert torch.allclose(rows.sum(1), torch.ones(new), atol=1e-6)
    if new <= 7:
        assert torch.allclose(rows.sum(0), torch.full((7,), new / 7), atol=1e-6)


def test_bytes_stay_bytes():
    images = torch.tensor([[[[0, 255], [255, 255]]]], dtype=torch.uint8)
    assert resize(images, 1).tolist() == [[[[191]]]]


def test_files_are_seen_as_a_run_has_seen_a_named_set(tmp_path):
    """Whose images it has averaged over areas; linear interpolation gives others."""
    config = ImageClassification(data="digits", size=3, samples=20, normalize=False)
    task = config.load()
    task.save(tmp_path)
    digits, seen = data.load("digits").test, ImageFormat.read(tmp_path / "images.json")
    places = [int((digits.targets == label).nonzero()[0]) for label in range(10)]
    for label, place in enumerate(places):
        (tmp_path / "signs" / str(label)).mkdir(parents=True)
        pixels = (255 * digits.inputs[place, 0]).round().byte().numpy()
        Image.fromarray(pixels).save(tmp_path / "signs" / str(label) / "0.png")
    expected = task.samples["test"].inputs[places]
    given = replace(config, data=str(tmp_path / "signs"))
    found = given.load_other(tmp_path).samples["test"].inputs / 255
    assert torch.allclose(found, expected, atol=0.01)
    paths = [tmp_path / "signs" / str(label) / "0.png" for label in range(10)]
    assert torch.allclose(torch.stack([sight(path, seen).pixels for path in paths]), found)
    linear = replace(seen, resize=replace(seen.resize, filter="linear"))
    assert (sight(paths[0], linear).pixels - expected[0]).abs().max() > 0.03


# --- a folder ------------------------------------------------------------------------------------


def test_a_folder_in_memory(folder):
    task = ImageClassification(data=str(folder), size=16, valid=6, normalize=True).load()
    assert [len(task.samples[name]) for name in task.splits] == [30, 6, 4]
    assert (task.source, task.shape, task.classes) == ("pets", (3, 16, 16), 2)
    assert task.files is None and task.eval_split == "valid"


def test_in_memory_and_from_disk_are_the_same(folder, monkeypatch):
    config = ImageClassification(data=str(folder), size=16)
    kept = config.load()
    monkeypatch.setattr("equilibria.zoo.vision.task.classification.MEMORY", 0)
    read = config.load()
    assert isinstance(read.samples["train"], files.ImageFiles)
    assert isinstance(kept.samples["train"], data.Split)
    for step in (0, 1, 2, 9):
        one, other = kept.feed(8, 3).batch(step), read.feed(8, 3).batch(step)
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
    for one, other in zip(kept.batches("test", 3), read.batches("test", 3), strict=True):
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def test_random_parts_depend_on_the_step_alone(folder):
    task = ImageClassification(data=str(folder), size=16, crop=0.2, normalize=True).load()
    feed = task.feed(8, 3)
    assert isinstance(feed, ImageFeed)
    batches = [feed.batch(step) for step in range(4)]
    torch.rand(100)
    again = task.feed(8, 3)  # as after an interruption: from the middle, and back
    for step in (2, 3, 1):
        assert torch.equal(again.batch(step).inputs, batches[step].inputs)
    shared = [task.feed(8, 3).batch(1, Part(place, 2)) for place in range(2)]
    assert torch.equal(torch.cat([part.inputs for part in shared]), batches[1].inputs)
    assert torch.equal(torch.cat([part.targets for part in shared]), batches[1].targets)
    assert not torch.equal(task.feed(8, 4).batch(1).inputs, batches[1].inputs)
    assert torch.equal(task.augment(batches[0]).inputs, batches[0].inputs)  # a part already
    assert torch.equal(task.sample("train", 3).inputs, task.sample("train", 3).inputs)


@pytest.mark.parametrize("crop", [None, 0.5])
def test_a_damaged_image_is_found_before_training(folder, crop):
    bad = folder / "dog" / "07.png"
    bad.write_bytes(bad.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"dog/07\.png is damaged"):
        ImageClassification(data=str(folder), size=16, crop=crop).load()


def test_of_many_images_a_damaged_one_is_found_when_it_is_shown(folder, monkeypatch):
    monkeypatch.setattr(headers, "SMALL", 10)
    for name in ("cat", "dog"):
        for bad in (folder / name).iterdir():
            bad.write_bytes(bad.read_bytes()[:-500])
    task = ImageClassification(data=str(folder), size=16, crop=0.5, valid=None)
    monkeypatch.setattr("equilibria.zoo.vision.task.classification.MEMORY", 0)
    with pytest.raises(DataError, match=r"(cat|dog)/\d\d\.png is damaged"):
        task.load().feed(8, 0).batch(0)


def test_images_of_their_own_to_validate_on(folder, tmp_path):
    for part in ("train", "val", "test"):
        (tmp_path / "three" / part).mkdir(parents=True)
        for label in ("cat", "dog"):
            (tmp_path / "three" / part / label).symlink_to(folder / label)
    name = str(tmp_path / "three")
    assert ImageClassification(data=name, size=8).load().splits == ("train", "valid", "test")
    with pytest.raises(ValueError, match=r"valid is 3, and .* images of its own"):
        ImageClassification(data=name, size=8, valid=3).load()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"data": "cifra10"}, ValueError, "'cifra10', nor any folder; did you mean 'cifar10"),
        ({"data": "./nowhere"}, DataError, r"there is no folder .*nowhere; expected FOLDER/CLASS"),
        ({"data": "digits", "channels": 3}, ValueError, "channels is 3, and 'digits' has the chan"),
    ],
)
def test_unknown_data(options, error, message):
    with pytest.raises(error, match=message):
        ImageClassification(**options).load()


def test_other_data_are_a_folder_named_in_full_or_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    images = ImageClassification(valid=10)
    assert images.at("photos") == ImageClassification(data=str(tmp_path / "photos"), valid=10)
    assert images.at("mnist").data == images.at("digits").at("mnist").data == "mnist"
    assert images.at(Path("mnist")).data == str(tmp_path / "mnist")


# --- a model for them ----------------------------------------------------------------------------

MDEQ = MDEQConfig(channels=(8, 8), groups=4, head_channels=(8, 8))


def test_shape_and_classes_are_filled_in(folder):
    task = ImageClassification(data=str(folder), size=16).load()
    config = task.complete(MDEQ)
    assert (config.shape, config.classes) == ((3, 16, 16), 2)
    assert task.complete(config) == config
    with pytest.raises(ValueError, match=r"model.classes is 3, and .* has 2"):
        task.complete(DenseConfig(shape=(3, 16, 16), classes=3))


def test_images_that_are_too_small_for_a_model(folder, tmp_path):
    small = MDEQConfig(channels=(8, 8, 8), groups=4, head_channels=(8, 8, 8))
    assert small.min_size > 2
    with pytest.raises(
        ValueError, match=r"images that task\.size makes 2 x 2 pixels of: too small"
    ):
        ImageClassification(data=str(folder), size=2).load().complete(small)
    for label in "ab":
        (tmp_path / "tiny" / label).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (2, 3)).save(tmp_path / "tiny" / label / f"{number}.png")
    with pytest.raises(ValueError, match=r"tiny/a/\d\.png \(3 x 2 pixels\): too small for this"):
        ImageClassification(data=str(tmp_path / "tiny")).load().complete(small)


def test_heads_and_the_weight_of_their_loss_go_together():
    plain = ImageClassification(data="digits").load()
    weighted = ImageClassification(data="digits", auxiliary=0.4).load()
    heads = MDEQConfig(channels=(8, 8), groups=4, head_channels=(8, 8), auxiliary=True)
    assert weighted.complete(heads).auxiliary and weighted.auxiliary == 0.4
    with pytest.raises(ValueError, match=r"has a head for task\.auxiliary, and nothing"):
        plain.complete(heads)
    with pytest.raises(ValueError, match=r"task\.auxiliary is 0\.4, and the model has no head"):
        weighted.complete(MDEQ)


@pytest.mark.parametrize(
    "bad",
    [
        *({"size": 0}, {"samples": 0}, {"valid": 0}, {"crop": 0.0}, {"crop": 1.5}),
        *({"channels": 2}, {"auxiliary": -1.0}, {"label_smoothing": 1.0}, {"shift": -1}),
    ],
    ids=str,
)
def test_impossible_fields(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        ImageClassification(**bad)


# --- the command line ----------------------------------------------------------------------------

RECIPE = """
task: {name: image_classification, size: 8, crop: 0.3, flip: true, normalise: true, valid: 4}
model: {name: dense, shape: [3, 8, 8], classes: 2, width: 8}
epochs: 1
batch_size: 8
probes: 2
"""


def test_a_folder_is_named_with_data(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(RECIPE)
    assert main(["train", "small.yaml", "--data", "pets", "--out", "run"]) == 0
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["source"] == "pets" and info["data"].startswith("sha256:")
    assert f"data: {folder}" in (tmp_path / "run" / "recipe.yaml").read_text()
    monkeypatch.chdir(tmp_path.parent)
    assert main(["evaluate", str(tmp_path / "run"), "--split", "valid"]) == 0
    assert "4 valid samples of pets" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("recipe", "value", "message"),
    [
        ("small.yaml", "nowhere", "no data set is called 'nowhere', nor any folder"),
        ("small.yaml", "./nowhere", "there is no folder"),
        pytest.param(
            *("copy-memory", "pets", "CopyMemory generates its own data"),
            marks=needs("language", "synthetic"),
        ),
    ],
    ids=["name", "path", "task"],
)
def test_data_that_cannot_be(recipe, value, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(RECIPE)
    assert main(["train", recipe, "--data", value, "--out", "run"]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_long_work_shows_its_progress(monkeypatch, capsys):
    from equilibria.run.data import storage

    monkeypatch.setattr(storage, "_FILE", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert list(storage.track("abc", 3, "Reading")) == list("abc")
    assert capsys.readouterr().err.splitlines()[-1] == "Reading: 2 of 3"
