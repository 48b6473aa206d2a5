"""The recipes of the papers' own sizes say what the papers, or the authors' scripts, print."""

import dataclasses
from typing import Any, cast

import pytest
import torch

from equilibria.run import recipe as recipes
from published import among

TINY = {  # Bai 2022 (thesis), table 3.1: 50 epochs without augmentation
    "task": {"data": "cifar10", "size": None, "flip": False, "shift": 0},
    "model": {"channels": [24, 24], "head_channels": [8, 16], "final": 200, "expansion": 5}
    | {"groups": 8, "dropout": 0.25, "weight_norm": True, "halvings": 0, "initial": 0.01},
    "solver": {"name": "Broyden", "max_evals": 18},
    "adjoint": {"linear": {"max_evals": 20}},
    "pretrain": {"layers": 10, "steps": 3000},
    "optimizer": {"name": "Adam", "lr": 1e-3, "weight_decay": 2.5e-6},
    "schedule": {"name": "Cosine"},
    "epochs": 50,
    "batch_size": 128,
}
IMAGENET = {  # what the authors' recipes for ImageNet have in common
    "task": {"data": "imagenet", "size": 224, "flip": True},
    "model": {"final": 2048, "halvings": 2, "groups": 8},
    "optimizer": {"name": "SGD", "momentum": 0.9},
    "schedule": {"name": "Cosine"},
    "epochs": 100,
}
PUBLISHED: dict[str, list[dict[str, Any]]] = {  # the parts of what is published
    # The authors' TINY, LARGE and LARGE_reg.
    "mdeq-cifar10-tiny-paper": [TINY],
    "mdeq-cifar10-large-paper": [
        {"task": {"flip": True, "shift": 4}, "epochs": 220, "batch_size": 128},
        {"model": {"channels": [32, 64, 128, 256], "head_channels": [14, 28, 56, 112]}},
        {"model": {"final": 1680, "expansion": 5, "dropout": 0.3}},
        {"solver": {"max_evals": 18}, "adjoint": {"linear": {"max_evals": 20}}},
        {"pretrain": {"layers": 10, "steps": 20000}, "optimizer": {"lr": 1e-3, "weight_decay": 0}},
    ],
    "mdeq-cifar10-large-jr-paper": [
        {"model": {"channels": [32, 64, 128, 256], "dropout": 0.22}},
        {"solver": {"max_evals": 8}, "adjoint": {"linear": {"max_evals": 7}}},
        {"regularizer": {"gamma": 0.4, "probability": 0.02}},
        {"pretrain": {"layers": 8, "steps": 16000}, "epochs": 220, "batch_size": 96},
    ],
    # The authors' SMALL, SMALL_reg, LARGE, LARGE_reg and XL.
    "mdeq-imagenet-small-paper": [
        IMAGENET,
        {"model": {"channels": [32, 64, 128, 256], "head_channels": [24, 48, 96, 192]}},
        {"solver": {"max_evals": 26}, "adjoint": {"linear": {"max_evals": 27}}},
        {"pretrain": {"layers": 5, "steps": 510000}, "batch_size": 128},
        {"optimizer": {"lr": 0.05, "weight_decay": 5e-5}},
    ],
    "mdeq-imagenet-small-jr-paper": [
        IMAGENET,
        {"model": {"head_channels": [28, 56, 112, 224], "dropout": 0.02}, "batch_size": 128},
        {"solver": {"max_evals": 14}, "adjoint": {"linear": {"max_evals": 14}}},
        {"regularizer": {"gamma": 2.5, "probability": 0.08}},
        {"optimizer": {"lr": 0.04, "weight_decay": 2e-5}},
    ],
    "mdeq-imagenet-large-paper": [
        IMAGENET,
        {"model": {"channels": [80, 160, 320, 640], "head_channels": [32, 64, 128, 256]}},
        {"solver": {"max_evals": 26}, "pretrain": {"layers": 4}, "batch_size": 128},
        {"optimizer": {"lr": 0.05, "weight_decay": 1e-4}},
    ],
    "mdeq-imagenet-large-jr-paper": [
        IMAGENET,
        {"model": {"channels": [80, 160, 320, 640]}, "optimizer": {"weight_decay": 1e-4}},
        {"solver": {"max_evals": 14}, "adjoint": {"linear": {"max_evals": 14}}},
        {"regularizer": {"gamma": 3.0, "probability": 0.08}},
    ],
    "mdeq-imagenet-xl-paper": [
        IMAGENET,
        {"model": {"channels": [88, 176, 352, 704], "head_channels": [32, 64, 128, 256]}},
        {"model": {"expansion": 6}, "pretrain": {"layers": 4}, "batch_size": 256},
        {"solver": {"max_evals": 26}, "adjoint": {"linear": {"max_evals": 27}}},
        {"optimizer": {"lr": 0.05, "weight_decay": 1e-4}},
    ],
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_papers_recipes_have_the_papers_numbers(name):
    tree = recipes.dump(recipes.load(name))
    for part in PUBLISHED[name]:
        assert among(tree, part) == part


def test_the_penalty_on_cifar_ends_where_the_script_ends_it():
    recipe = recipes.load("mdeq-cifar10-large-jr-paper")
    penalty, steps = recipe.regularizer, 220 * (50_000 // 96)
    assert penalty is not None
    assert penalty.at(89 * (50_000 // 96), steps) == (0.4, 0.02)
    assert penalty.at(91 * (50_000 // 96), steps) == (0.4, 0.0)


def test_the_penalty_on_imagenet_climbs_as_in_the_script():
    penalty = recipes.load("mdeq-imagenet-small-jr-paper").regularizer
    assert penalty is not None
    steps = 100 * (1_281_167 // 128)
    for climbed in range(10):  # by .1 every 50,000 steps behind the warm-up
        gamma, _ = penalty.at(510_000 + 50_000 * climbed + 25_000, steps)
        assert gamma == pytest.approx(2.5 + 0.1 * climbed)


# --- sizes ----------------------------------------------------------------------------------------


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
