"""Image classification: its loss and metric, and what is done to training images."""

import json

import pytest
import torch

from equilibria.run import data
from equilibria.run.data import Split
from equilibria.run.tasks.normalization import PixelStatistics
from equilibria.zoo.vision.task.batches import crop_images, flip_images
from equilibria.zoo.vision.task.classification import ImageClassification, shift_images


@pytest.fixture(scope="module")
def task():
    return ImageClassification(data="digits", shift=1).load()


def test_loss_and_metric_know_right_from_wrong(task):
    targets = torch.tensor([0, 1, 2])
    sure = 20.0 * torch.eye(10)[:3]
    assert task.loss(None, sure, targets) < 1e-6
    assert task.loss(None, sure, targets.flip(0)) > 10.0
    found = task.sums(None, sure, torch.tensor([0, 1, 3]))
    assert (found["correct"], found["answers"]) == (2, 3) and task.units(targets) == 3


def test_an_image_moves_as_a_whole_and_by_a_few_pixels_at_most():
    image = torch.arange(25.0).reshape(1, 1, 5, 5)
    moved = shift_images(image.expand(400, 2, 5, 5), 1)
    assert torch.equal(moved[:, 0], moved[:, 1])
    inner = {tuple(m[0, 1:4, 1:4].flatten().tolist()) for m in moved}
    expected = {
        tuple(image[0, 0, 1 + i : 4 + i, 1 + j : 4 + j].flatten().tolist())
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
    }
    assert inner == expected


def test_every_image_of_a_batch_moves_on_its_own():
    moved = shift_images(torch.rand(1, 1, 8, 8).expand(50, 1, 8, 8), 2)
    assert len({tuple(m.flatten().tolist()) for m in moved}) > 10


def test_only_training_images_are_moved(task):
    batch = task.sample("test", 50)
    assert not torch.equal(task.augment(batch).inputs, batch.inputs)
    plain = ImageClassification(data="digits").load()
    assert torch.equal(plain.augment(batch).inputs, batch.inputs)


@pytest.mark.parametrize(("inputs", "targets"), [(0, 0), (3, 2)])
def test_samples_need_targets_and_at_least_one(inputs, targets):
    with pytest.raises(ValueError, match="at least one"):
        Split(torch.zeros(inputs, 1), torch.zeros(targets))


# --- at random -----------------------------------------------------------------------------------


def test_some_images_are_mirrored():
    images = torch.arange(6.0).reshape(1, 1, 2, 3).expand(200, 1, 2, 3)
    found = flip_images(images)
    mirrored = (found == images.flip(3)).all(3).all(2).flatten()
    assert 60 < int(mirrored.sum()) < 140
    assert torch.equal(found[~mirrored], images[~mirrored])


def test_a_part_of_everything_is_the_image():
    ramp = torch.arange(24.0).reshape(1, 1, 4, 6).expand(64, 2, 4, 6)
    square = ramp[..., :4]
    found = crop_images(square, 1.0)
    whole = (found - square).abs().amax((1, 2, 3)) < 1e-4  # else narrower or wider than the image
    assert found.shape == square.shape and found.min() >= square.min() - 1e-4
    assert torch.allclose(crop_images(torch.ones(5, 3, 8, 8), 0.1), torch.ones(5, 3, 8, 8))
    assert not whole.all()


def test_parts_show_what_is_in_their_box(monkeypatch):
    from equilibria.zoo.io import image_files

    images = torch.arange(64.0).reshape(1, 1, 8, 8)
    monkeypatch.setattr(image_files, "boxes", lambda *_: torch.tensor([[2.0, 4.0, 4.0, 4.0]]))
    found = crop_images(images, 0.5)
    # Rows 2 to 5, columns 4 to 7, each pixel shown twice along each side and smoothed between.
    assert found[0, 0, :, 0].diff().min() > 0
    means = torch.nn.functional.avg_pool2d(found, 2)[0, 0]
    assert torch.allclose(means[1:3, 1:3], images[0, 0, 3:5, 5:7], atol=1e-4)


def test_training_images_alone_are_changed():
    task = ImageClassification(data="digits", flip=True, crop=0.3).load()
    batch = task.feed(50, 0).batch(0)
    torch.manual_seed(0)
    one = task.augment(batch).inputs
    torch.manual_seed(0)
    assert torch.equal(task.augment(batch).inputs, one) and not torch.equal(one, batch.inputs)
    assert torch.equal(task.sample("test", 3).inputs, data.load("digits").test.inputs[:3])


def test_normalised_images(tmp_path):
    task = ImageClassification(data="digits", normalize=True, samples=500).load()
    inputs = task.sample("train", 500).inputs
    assert float(inputs.mean()) == pytest.approx(0, abs=1e-5)
    assert float(inputs.std(correction=0)) == pytest.approx(1, abs=1e-5)
    plain = ImageClassification(data="digits", samples=500).load()
    again = task.statistics.apply(plain.sample("test", 9).inputs)
    assert torch.equal(task.sample("test", 9).inputs, again)
    task.save(tmp_path)
    saved = json.loads((tmp_path / "images.json").read_text())
    assert saved["labels"] == list("0123456789") and saved["source"] == "Digits"
    assert (
        PixelStatistics(**{k: tuple(v) for k, v in saved["normalise"].items()}) == task.statistics
    )


@pytest.mark.parametrize("level", [0, 51, 100, 128, 254, 255])
def test_constant_images_have_no_deviation(level):
    images = torch.randint(0, 256, (300, 2, 8, 8), dtype=torch.uint8)
    images[:, 1] = level
    message = rf"channel 1 is {level / 255:g} everywhere: set task\.normalize"
    with pytest.raises(ValueError, match=message):
        PixelStatistics.of(data.Split(images, torch.zeros(300)))


def test_a_part_of_the_images_stands_for_all_classes():
    """Images lie class by class: the first ones are of few classes."""
    levels = torch.arange(100, dtype=torch.float64)
    found = PixelStatistics.of(data.Split(levels.reshape(-1, 1, 1, 1), levels), most=20)
    assert found.mean[0] == pytest.approx(float(levels.mean()), abs=3)
    assert found.deviation[0] == pytest.approx(float(levels.std()), rel=0.05)
