"""ResNet: shapes at every input size, its shortcuts, and the layout of its images."""

import pytest
import torch

from equilibria.run import models
from equilibria.zoo.vision.model.explicit import BasicBlock

SMALL = {"classes": 3, "widths": (4, 8), "blocks": (1, 2)}


@pytest.mark.parametrize(
    ("stem", "size", "places"),
    [
        ("cifar", (1, 1), (1, 1)),
        ("cifar", (8, 8), (4, 4)),
        ("cifar", (7, 9), (4, 5)),
        ("imagenet", (32, 32), (4, 4)),
        ("imagenet", (1, 5), (1, 1)),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "x".join(map(str, value)),
)
def test_the_grid_halves_as_it_should_at_any_size(stem, size, places):
    model = models.create("resnet", shape=(3, *size), stem=stem, **SMALL).eval()
    x = torch.randn(2, 3, *size)
    assert model.body(model.stem(x)).shape == (2, 8, *places)
    prediction = model(x)
    assert prediction.output.shape == (2, 3) and prediction.solutions == ()


def test_a_block_with_silent_convolutions_is_its_shortcut():
    block = BasicBlock(4, 4, 1).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(2, 4, 5, 5)
    torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize(("side", "last"), [(32, True), (64, False)])
def test_few_channels_on_many_places_lie_where_backward_is_safe(side, last):
    """Kernels of 8 channels: oneDNN's backward with channels last ends the process at 48 x 48."""
    model = models.create("resnet", shape=(3, 32, 32), classes=3, widths=(8, 16), blocks=(1, 1))
    seen = []
    model.stem.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs))
    model(torch.rand(2, 3, side, side)).output.sum().backward()
    assert seen[0].is_contiguous(memory_format=torch.channels_last) is last
    assert all(bool(torch.isfinite(each.grad).all()) for each in model.parameters())
