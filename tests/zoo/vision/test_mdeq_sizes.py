"""Sizes of the released MDEQs, from their tables of channels alone."""

import dataclasses
from typing import Any, cast

import pytest
import torch

from equilibria.run import recipe as recipes

RELEASED = {
    # recipe: millions of parameters that the released tables make, data
    "mdeq-cifar10-tiny-paper": (0.159, (3, 32, 32), 10),
    "mdeq-cifar10-large-paper": (11.10, (3, 32, 32), 10),
    "mdeq-imagenet-small-paper": (16.81, (3, 224, 224), 1000),
    "mdeq-imagenet-large-paper": (67.06, (3, 224, 224), 1000),
    "mdeq-imagenet-xl-paper": (90.46, (3, 224, 224), 1000),
}


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_released_channels_make_the_released_size(name):
    millions, shape, classes = RELEASED[name]
    recipe = recipes.load(name)
    config = dataclasses.replace(cast(Any, recipe.model), shape=shape, classes=classes)
    with torch.device("meta"):
        model = config.build(**recipe.layer())
    assert model.deq.cell.channels == config.channels  # no width but those of the table
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", ["mdeq-cifar10-small-gpu", "mdeq-cifar10-gpu"])
def test_the_sizes_for_a_gpu_are_the_released_ones(name):
    paper = {"mdeq-cifar10-small-gpu": "tiny", "mdeq-cifar10-gpu": "large"}[name]
    assert recipes.load(name).model == recipes.load(f"mdeq-cifar10-{paper}-paper").model
