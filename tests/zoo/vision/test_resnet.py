"""ResNet: the published sizes, shapes at every input size, and what it refuses."""

import pytest
import torch

from equilibria.run import models
from equilibria.zoo.vision.model.explicit import BasicBlock

SIZES = [
    # config, parameters: He et al. 2016 as torchvision builds it; then as documented.
    ({"stem": "imagenet", "shape": (3, 224, 224), "classes": 1000}, 11_689_512),
    ({"shape": (3, 32, 32), "classes": 10}, 11_173_962),
    ({"shape": (3, 32, 32), "classes": 10, "widths": (8, 16, 32, 64)}, 176_402),
    ({"shape": (3, 16, 16), "classes": 10, "widths": (8, 16, 32), "blocks": (2, 2, 2)}, 44_370),
]
SMALL = {"classes": 3, "widths": (4, 8), "blocks": (1, 2)}


@pytest.mark.parametrize(("config", "count"), SIZES, ids=["imagenet", "cifar", "170K", "16x16"])
def test_it_has_the_documented_number_of_parameters(config, count):
    with torch.device("meta"):
        model = models.create("resnet", **config)
    assert sum(p.numel() for p in model.parameters()) == count


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


def test_every_parameter_gets_a_gradient():
    torch.manual_seed(0)
    model = models.create("resnet", shape=(1, 8, 8), **SMALL)
    model(torch.randn(4, 1, 8, 8)).output.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize(
    "bad",
    [{"widths": (8, 16)}, {"widths": (), "blocks": ()}, {"blocks": (2, 2, 0, 2)}, {"stem": "none"}],
    ids=["lengths", "empty", "zero", "stem"],
)
def test_an_impossible_field_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        models.create("resnet", shape=(3, 8, 8), classes=2, **bad)


def test_it_has_no_layer_and_no_memory():
    with pytest.raises(TypeError, match="no equilibrium layer to take drop_finished"):
        models.create("resnet", shape=(1, 8, 8), **SMALL, drop_finished=True)
    with pytest.raises(ValueError, match="takes no carry"):
        models.create("resnet", shape=(1, 8, 8), **SMALL)(torch.zeros(1, 1, 8, 8), carry=1)


@pytest.mark.parametrize(("side", "last"), [(32, True), (64, False)])
def test_few_channels_on_many_places_lie_where_backward_is_safe(side, last):
    """Kernels of 8 channels: oneDNN's backward with channels last ends the process at 48 x 48."""
    model = models.create("resnet", shape=(3, 32, 32), classes=3, widths=(8, 16), blocks=(1, 1))
    seen = []
    model.stem.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs))
    model(torch.rand(2, 3, side, side)).output.sum().backward()
    assert seen[0].is_contiguous(memory_format=torch.channels_last) is last
    assert all(bool(torch.isfinite(each.grad).all()) for each in model.parameters())
