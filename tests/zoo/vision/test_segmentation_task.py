"""Segmentation from a folder to a run and back: training, evaluation, other data."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.zoo.vision.data.segmentation import VOID
from equilibria.zoo.vision.model.explicit import ResNetConfig, UNetConfig
from equilibria.zoo.vision.model.segmentation import MDEQSegmentationConfig
from equilibria.zoo.vision.task.segmentation import ImageSegmentation, usual_size
from pictures import scenes

pytestmark = pytest.mark.usefixtures("cache")

TREE = {
    "task": {"name": "image_segmentation", "normalize": True, "balance": 0.5},
    "model": {"name": "unet", "widths": [4, 8]},
    "solver": None,
    "adjoint": None,
    "optimizer": {"name": "AdamW", "lr": 0.01},
    "epochs": 2,
    "batch_size": 4,
}


def write(folder, count=12, size=(16, 20), classes="left\nright\n", seed=0):
    """Noise that is brighter in a random half: the right class of each pixel."""
    generator = np.random.default_rng(seed)

    def draw():
        mask = np.zeros(size, np.uint8)
        mask[:, generator.integers(4, size[1] - 4) :] = 1
        image = 60 * mask[..., None] + generator.integers(0, 120, (*size, 3))
        mask[0] = 255
        return image, mask

    return scenes(folder, (draw() for _ in range(count)), classes)


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "halves")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that has learned to tell the halves."""
    place = tmp_path_factory.mktemp("trained")
    (place / "halves.yaml").write_text(json.dumps(TREE))
    words = ["train", str(place / "halves.yaml"), "--data", str(write(place / "halves"))]
    assert main([*words, "--out", str(place / "run"), "--epochs", "30"]) == 0
    return place / "run"


@pytest.fixture
def run(trained, tmp_path):
    """That run, to be changed."""
    return shutil.copytree(trained, tmp_path / "run")


def task_of(folder, **options):
    return ImageSegmentation(data=str(folder), **options).load()


def test_a_folder_is_trained_on_and_evaluated(run, capsys):
    result = json.loads((run / "evaluation.json").read_text())
    assert result["miou"] > 0.7 and result["pixels"] == 15 * 20
    assert result["iou_left"] + result["iou_right"] == pytest.approx(2 * result["miou"])
    seen = json.loads((run / "images.json").read_text())
    assert seen["kind"] == "segmentation" and seen["labels"] == ["left", "right"]
    capsys.readouterr()
    assert main(["evaluate", str(run)]) == 0
    out = capsys.readouterr().out
    assert "mean IoU" in out and "boosted trees: mean IoU" in out and "IoU, left" in out


def test_views_of_a_run(run, capsys):
    evaluate = ["evaluate", str(run), "--no-baselines"]
    capsys.readouterr()
    assert main([*evaluate, "--scales", "0.75", "1", "--mirrored"]) == 0
    assert "scales 0.75 1, mirrored" in " ".join(capsys.readouterr().out.split())
    assert main([*evaluate, "--window", "12", "12", "--overlap", "4"]) == 0
    assert "windows of 12 x 12" in " ".join(capsys.readouterr().out.split())
    found = json.loads((run / "evaluation-changed.json").read_text())
    assert (found["window"], found["overlap"]) == ([12, 12], 4) and "scales" not in found
    whole = json.loads((run / "evaluation.json").read_text())
    assert found["loss"] != whole["loss"]
    capsys.readouterr()
    assert main([*evaluate, "--overlap", "4"]) == 1
    assert "give their size with --window" in capsys.readouterr().err
    assert main([*evaluate, "--window", "4", "4", "--overlap", "4"]) == 1
    err = capsys.readouterr().err
    assert "cannot overlap by 4" in err and "take windows of at least" in err


def test_views_are_for_segmentation(digits_run, capsys):
    assert main(["evaluate", str(digits_run), "--mirrored"]) == 1
    assert "--mirrored is for segmentation, which this run's" in capsys.readouterr().err


def test_other_data_have_the_classes_of_the_run(run, tmp_path, capsys):
    # The same classes under other numbers.
    other = write(tmp_path / "other", count=5, seed=3)
    (other / "classes.txt").write_text("0: left\n1: right\n")
    swapped = write(tmp_path / "swapped", count=5, classes="right\nleft\n", seed=3)
    for path in (swapped / "masks").iterdir():
        mask = np.asarray(Image.open(path))
        Image.fromarray(np.where(mask < 2, 1 - mask, mask).astype(np.uint8)).save(path)
    found = []
    for data in (other, swapped):
        assert main(["evaluate", str(run), "--data", str(data), "--no-baselines"]) == 0
        files = sorted(run.glob(f"evaluation-other-{data.name}*.json"))
        found.append(json.loads(files[0].read_text()))
    assert found[0]["miou"] == found[1]["miou"] > 0.6
    assert found[0]["iou_left"] == found[1]["iou_left"]
    capsys.readouterr()
    strange = write(tmp_path / "strange", classes="left\nright\nabove\n")
    assert main(["evaluate", str(run), "--data", str(strange)]) == 1
    assert "classes that the run does not have: above" in capsys.readouterr().err


def test_other_images_may_differ_in_size_and_are_compared_with_nothing(run, tmp_path, capsys):
    """They are only looked at, so that none has to share a batch with one of another size."""
    other = tmp_path / "other"
    for number, part in enumerate(("train", "test")):
        write(other / part, count=3, seed=number)
        for name in ("images", "masks"):
            larger = Image.open(other / part / name / "01.png").resize(
                (24, 32), Image.Resampling(0)
            )
            larger.save(other / part / name / "01.png")
    (other / "classes.txt").write_text("left\nright\n")
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(other)]) == 0
    assert "boosted trees" not in capsys.readouterr().out
    alone = write(tmp_path / "alone", count=2, seed=3)  # no part of it is for training
    assert main(["evaluate", str(run), "--data", str(alone)]) == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ResNetConfig(), "describes no network that gives each pixel a class"),
        (UNetConfig(classes=3), "2 classes"),
        (MDEQSegmentationConfig(auxiliary=True), "a head for task.auxiliary"),
        (MDEQSegmentationConfig(heads=("masks", "presence")), "a head for task.presence"),
    ],
)
def test_models_that_do_not_fit(folder, config, words):
    with pytest.raises(ValueError, match=words):
        task_of(folder).complete(config)


def test_a_loss_without_a_head_is_refused(folder):
    with pytest.raises(ValueError, match=r"task\.presence is 1, and the model has no head"):
        task_of(folder, presence=1.0).complete(UNetConfig())


def test_dense_networks_classify_no_images(tmp_path, capsys):
    words = ["train", "digits", "--out", str(tmp_path / "run"), "--model.name", "unet"]
    words += ["--model.widths", "[4, 8]", "--solver.name", "null", "--adjoint.name", "null"]
    assert main(words) == 1
    assert "gives each pixel a class" in capsys.readouterr().err


def test_several_heads_learn_together(folder):
    task = task_of(folder, presence=0.5, auxiliary=0.3)
    tree = {
        **TREE,
        "model": {"name": "mdeq-segmentation", "channels": [4, 4], "groups": 2, "expansion": 1},
    }
    del tree["solver"], tree["adjoint"]
    tree["model"] |= {"heads": ["masks", "presence"], "auxiliary": True}
    tree["task"] = {**TREE["task"], "data": str(folder), "presence": 0.5, "auxiliary": 0.3}
    recipe = recipes.parse(tree)
    torch.manual_seed(0)
    model = task.model(recipe.model, **recipe.layer())
    batch = task.feed(4, 0).batch(0)
    prediction = model(batch.inputs)
    assert len(prediction.auxiliary) == 2 and len(prediction.solutions) == 1
    loss = task.loss(model, prediction.output, batch.targets)
    masks = task.loss(model, prediction.output["masks"], batch.targets)
    assert loss > masks > 0
    loss.backward()
    for name, parameter in model.named_parameters():
        if not name.startswith("auxiliary"):
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    sums = task.sums(model, prediction.output, batch.targets)
    assert sums["presence"].shape == (2, 2, 2) and int(sums["presence"].sum()) == 2 * 4
    assert int(sums["confusion"].sum()) == task.units(batch.targets) == 4 * 15 * 20


def test_batches_hold_images_of_one_size(tmp_path):
    folder = write(tmp_path / "halves", count=6)
    for k in (1, 2):
        for kind in ("images", "masks"):
            path = folder / kind / f"{k:02}.png"
            Image.open(path).crop((0, 0, 10, 8)).save(path)
    config = ImageSegmentation(data=str(folder), crop=(8, 8))
    task = config.load()
    shapes = [tuple(batch.inputs.shape) for batch in task.batches("train", 4)]
    assert sum(shape[0] for shape in shapes) == 5 and len({shape[2:] for shape in shapes}) == 2
    assert task.feed(4, 0).batch(0).inputs.shape == (4, 3, 8, 8)
    with pytest.raises(ValueError, match=r"differ in size: show parts of one size with task\.crop"):
        task_of(folder)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(360, 480)] * 3, (120, 160)),
        ([(1080, 1920), (1080, 1920), (500, 500)], (104, 184)),
        ([(100, 100)] * 2, None),
        ([(100, 100), (90, 110)], (96, 104)),
    ],
)
def test_the_size_that_follows_from_the_images(sizes, expected):
    assert usual_size(sizes) == expected


def test_auto_is_settled_from_the_images(tmp_path):
    folder = write(tmp_path / "halves", size=(180, 240), count=4)
    config = ImageSegmentation(data=str(folder), size="auto", crop="auto")
    task = config.load()
    settled = task.settle(config)
    assert (settled.size, settled.crop) == ((120, 160), (120, 160))
    assert task.shape == (3, 120, 160) and settled.load().shape == task.shape
    with pytest.raises(ValueError, match="size must be a height and a width"):
        ImageSegmentation(size=(3,))


def test_what_was_chosen_is_said_whole(tmp_path, capsys):
    """A height and a width, and not the first line of them as a list in YAML."""
    folder = write(tmp_path / "halves", size=(180, 240), count=4)
    tree = {**TREE, "task": {**TREE["task"], "size": "auto", "crop": None}}
    (tmp_path / "halves.yaml").write_text(json.dumps(tree))
    words = ["train", str(tmp_path / "halves.yaml"), "--data", str(folder), "--epochs", "1"]
    assert main([*words, "--out", str(tmp_path / "run"), "--batch-size", "50"]) == 1
    out, err = capsys.readouterr()
    assert "Chosen for halves: task.size [120, 160]" in out
    assert "only 3 training samples: take at most --batch-size 3" in err


def test_batches_are_a_function_of_the_step(folder):
    task = task_of(folder, crop=(16, 20), scale=(0.5, 2.0), flip=True, color=0.3)
    one, other = task.feed(4, 0), task.feed(4, 0)
    later = one.batch(1)
    again = [other.batch(0), other.batch(1)][1]
    assert torch.equal(later.inputs, again.inputs) and torch.equal(later.targets, again.targets)
    assert not torch.equal(task.feed(4, 1).batch(1).inputs, later.inputs)
    assert (later.targets[:, 1:] == VOID).any()  # around an image that was made smaller


def test_weights_of_classes_follow_the_training_pixels(folder):
    task = task_of(folder, balance=1.0)
    counts = task.counts().double()
    assert torch.allclose(task.weights.double() * counts, counts.sum().expand(2) / 2, rtol=1e-4)
    assert task_of(folder).weights is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": (4,)}, "size must be a height and a width"),
        ({"scale": (2.0, 1.0)}, "scale must be the smallest and the largest"),
        ({"hard": 0.0}, r"hard must lie in \(0, 1\]"),
        ({"color": 1.5}, "color must lie in"),
        ({"presence": -1.0}, "presence must not be negative"),
        ({"samples": 100}, "samples is 100, and the train split has 11 images"),
    ],
)
def test_impossible_options_are_refused(folder, options, words):
    with pytest.raises(ValueError, match=words):
        task_of(folder, **options)
