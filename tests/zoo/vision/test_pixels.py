"""The loss and the metrics of pixels, and how training sees images with masks."""

import math

import pytest
import torch
from torch.nn import functional

from equilibria.zoo.vision.data.segmentation import VOID
from equilibria.zoo.vision.task import pixels
from equilibria.zoo.vision.task.batches import DRAWS, SceneView, apply_view


def drawn(generator=None):
    return torch.rand(DRAWS, generator=generator)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(4, (2, 6, 5), generator=generator)
    targets[0, :2] = VOID
    return logits, targets


# --- loss ----------------------------------------------------------------------------------------


def test_the_loss_is_summed_over_pixels_that_have_a_class(batch):
    logits, targets = batch
    known = targets != VOID
    rows = logits.movedim(1, -1)[known]
    expected = functional.cross_entropy(rows, targets[known], reduction="sum")
    assert torch.allclose(pixels.cross_entropy(logits, targets), expected)
    changed = logits.detach().clone()
    changed[0, :, :2] += 100 * torch.rand(4, 2, 5, dtype=torch.float64)
    assert torch.allclose(pixels.cross_entropy(changed, targets), expected)


def test_hard_pixels_count_and_void_ones_never(batch):
    logits, targets = batch
    known = targets != VOID
    own = logits.softmax(1).movedim(1, -1)[known].gather(1, targets[known][:, None])[:, 0]
    loss = pixels.cross_entropy(logits, targets, hard=0.3)
    mean = -own[own <= 0.3].log().mean()
    assert torch.allclose(loss / known.sum(), mean)
    # With a share that counts in any case, the hardest ones do.
    count = math.ceil(0.25 * len(own))
    loss = pixels.cross_entropy(logits, targets, hard=1e-9, least=0.25)
    assert torch.allclose(loss / known.sum(), -own.sort().values[:count].log().mean())
    assert pixels.cross_entropy(logits, targets, hard=1.0) > 0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0, :, :2].abs().sum() == 0 and gradient.abs().sum() > 0


def test_a_batch_without_classes_has_no_loss():
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    targets = torch.full((1, 2, 2), VOID)
    for options in ({}, {"hard": 0.5, "least": 0.5}):
        loss = pixels.cross_entropy(logits, targets, **options)
        assert loss == 0
        loss.backward()


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_weights_of_classes_have_mean_one_over_pixels(power):
    counts = torch.tensor([900, 90, 10, 0])
    weights = pixels.weigh_classes(counts, power)
    assert (weights * counts).sum() / counts.sum() == pytest.approx(1.0)
    assert weights[3] == 0
    assert float(weights[2] / weights[0]) == pytest.approx(90**power, rel=1e-5)


def test_no_weights_follow_from_void_alone():
    with pytest.raises(ValueError, match="all pixels to learn from are void"):
        pixels.weigh_classes(torch.zeros(3, dtype=torch.int64), 0.5)


# --- metrics -------------------------------------------------------------------------------------


def figure(metric, sums):
    assert metric.figure is not None
    return metric.figure(sums)


def test_figures_of_a_small_confusion():
    targets = torch.tensor([[0, 0, 1, 1, VOID, 2]])
    answers = torch.tensor([[0, 1, 1, 1, 0, 0]])
    matrix = pixels.confusion(answers, targets, 4)
    assert matrix.tolist() == [[1, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    sums = {"confusion": matrix}
    metrics = {each.name: figure(each, sums) for each in pixels.confusion_metrics("abcd")}
    assert metrics["iou_a"] == pytest.approx(1 / 3)
    assert metrics["iou_b"] == pytest.approx(2 / 3)
    assert metrics["iou_c"] == 0 and math.isnan(metrics["iou_d"])  # nowhere: left out of the mean
    assert metrics["miou"] == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)
    assert metrics["pixel_accuracy"] == pytest.approx(3 / 5)
    assert metrics["class_accuracy"] == pytest.approx((1 / 2 + 1 + 0) / 3)


def test_presence_is_balanced():
    targets = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0]]).bool()
    always = torch.ones(4, 2).bool()
    sums = {"presence": pixels.agreement(always, targets)}
    assert figure(pixels.PRESENCE, sums) == pytest.approx(0.5)  # the first class says nothing
    sums = {"presence": pixels.agreement(targets, targets)}
    assert figure(pixels.PRESENCE, sums) == 1.0


# --- views ---------------------------------------------------------------------------------------


def scene(height=24, width=32):
    """An image whose first channel is the number of its class, in tenths."""
    mask = torch.arange(height * width).view(height, width).div(width * 12, rounding_mode="floor")
    mask = (mask + (torch.arange(width) >= width // 2)).to(torch.uint8)
    return (mask / 10).expand(3, height, width).contiguous(), mask


def test_nothing_asked_changes_nothing():
    image, mask = scene()
    shown, classes = apply_view(image, mask, SceneView(), drawn())
    assert torch.equal(shown, image) and torch.equal(classes, mask)


@pytest.mark.parametrize("crop", [(16, 20), (24, 32), (40, 48)])
@pytest.mark.parametrize("scale", [(1.0, 1.0), (0.5, 2.0)])
def test_image_and_mask_stay_together(crop, scale):
    image, mask = scene()
    view = SceneView(crop=crop, scale=scale, flip=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        shown, classes = apply_view(image, mask, view, drawn(generator))
        assert shown.shape == (3, *crop) and classes.shape == crop
        known = classes != VOID
        assert known.any()
        # Between two classes colours are interpolated; elsewhere they tell the class.
        off = (10 * shown[0][known] - classes[known]).abs()
        assert off.median() < 1e-3 and (off < 0.6).float().mean() > 0.9
        assert (shown[:, ~known] == 0).all()


@pytest.mark.parametrize("flip", [False, True])
def test_a_crop_without_scaling_has_the_pixels_of_the_image(flip):
    """In between two pixels, an image would be blurred in training and sharp in the test."""
    image = torch.rand(3, 9, 11, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(99, dtype=torch.uint8).view(9, 11)
    begins = set()
    for each in torch.rand(60, DRAWS, generator=torch.Generator().manual_seed(2)):
        shown, classes = apply_view(image, mask, SceneView(crop=(9, 8), flip=flip), each)
        first = int(classes[0].min())
        begins.add(first)
        assert torch.equal(classes.sort(1).values, mask[:, first : first + 8])
        places = classes.long().flatten()
        assert torch.allclose(shown.flatten(1), image.flatten(1)[:, places], atol=1e-5)
    assert begins == {0, 1, 2, 3}


def test_a_larger_crop_is_void_around_the_image():
    image, mask = scene()
    shown, classes = apply_view(image, mask, SceneView(crop=(40, 32)), drawn())
    assert int((classes == VOID).sum()) == 16 * 32
    assert torch.equal(classes[classes != VOID].view(24, 32), mask)
    assert shown[:, classes == VOID].abs().max() == 0


def test_mirroring_mirrors_both():
    image, mask = scene()
    found = set()
    for each in torch.rand(20, DRAWS, generator=torch.Generator().manual_seed(1)):
        shown, classes = apply_view(image, mask, SceneView(flip=True), each)
        flipped = bool(torch.equal(classes, mask.flip(-1)))
        assert torch.equal(shown, image.flip(-1) if flipped else image)
        found.add(flipped)
    assert found == {True, False}


def test_colours_change_and_classes_do_not():
    image, mask = scene()
    shown, classes = apply_view(image, mask, SceneView(color=0.5), drawn())
    assert torch.equal(classes, mask) and not torch.equal(shown, image)
    assert shown.min() >= 0 and shown.max() <= 1
