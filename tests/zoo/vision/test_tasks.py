"""Image classification: its data, loss, metric and what it does to training images."""

import pytest
import torch

from equilibria.run.data import Split
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
