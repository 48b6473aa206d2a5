"""The recipes of the papers' own sizes say what the papers, or the authors' scripts, print."""

from typing import Any

import pytest

from equilibria.run import recipe as recipes

IMAGENET: dict[str, Any] = {
    "task.data": "imagenet",
    "task.size": 224,
    "task.flip": True,
    "model.final": 2048,
    "model.halvings": 2,
    "model.groups": 8,
    "optimizer.name": "SGD",
    "optimizer.momentum": 0.9,
    "schedule.name": "Cosine",
    "epochs": 100,
}
"""What the authors' recipes for ImageNet have in common."""

PUBLISHED: dict[str, dict[str, Any]] = {
    # The authors' TINY, LARGE and LARGE_reg; Bai 2022 (thesis), table 3.1: 50 epochs without
    # augmentation.
    "mdeq-cifar10-tiny-paper": {
        "task.data": "cifar10",
        "task.size": None,
        "task.flip": False,
        "task.shift": 0,
        "model.channels": [24, 24],
        "model.head_channels": [8, 16],
        "model.final": 200,
        "model.expansion": 5,
        "model.groups": 8,
        "model.dropout": 0.25,
        "model.weight_norm": True,
        "model.halvings": 0,
        "model.initial": 0.01,
        "solver.name": "Broyden",
        "solver.max_evals": 18,
        "adjoint.linear.max_evals": 20,
        "pretrain.layers": 10,
        "pretrain.steps": 3000,
        "optimizer.name": "Adam",
        "optimizer.lr": 1e-3,
        "optimizer.weight_decay": 2.5e-6,
        "schedule.name": "Cosine",
        "epochs": 50,
        "batch_size": 128,
    },
    "mdeq-cifar10-large-paper": {
        "task.flip": True,
        "task.shift": 4,
        "model.channels": [32, 64, 128, 256],
        "model.head_channels": [14, 28, 56, 112],
        "model.final": 1680,
        "model.expansion": 5,
        "model.dropout": 0.3,
        "solver.max_evals": 18,
        "adjoint.linear.max_evals": 20,
        "pretrain.layers": 10,
        "pretrain.steps": 20000,
        "optimizer.lr": 1e-3,
        "optimizer.weight_decay": 0.0,
        "epochs": 220,
        "batch_size": 128,
    },
    "mdeq-cifar10-large-jr-paper": {
        "model.channels": [32, 64, 128, 256],
        "model.dropout": 0.22,
        "solver.max_evals": 8,
        "adjoint.linear.max_evals": 7,
        "regularizer.gamma": 0.4,
        "regularizer.probability": 0.02,
        "pretrain.layers": 8,
        "pretrain.steps": 16000,
        "epochs": 220,
        "batch_size": 96,
    },
    # The authors' SMALL, SMALL_reg, LARGE, LARGE_reg and XL.
    "mdeq-imagenet-small-paper": {
        **IMAGENET,
        "model.channels": [32, 64, 128, 256],
        "model.head_channels": [24, 48, 96, 192],
        "solver.max_evals": 26,
        "adjoint.linear.max_evals": 27,
        "pretrain.layers": 5,
        "pretrain.steps": 510000,
        "optimizer.lr": 0.05,
        "optimizer.weight_decay": 5e-5,
        "batch_size": 128,
    },
    "mdeq-imagenet-small-jr-paper": {
        **IMAGENET,
        "model.head_channels": [28, 56, 112, 224],
        "model.dropout": 0.02,
        "solver.max_evals": 14,
        "adjoint.linear.max_evals": 14,
        "regularizer.gamma": 2.5,
        "regularizer.probability": 0.08,
        "optimizer.lr": 0.04,
        "optimizer.weight_decay": 2e-5,
        "batch_size": 128,
    },
    "mdeq-imagenet-large-paper": {
        **IMAGENET,
        "model.channels": [80, 160, 320, 640],
        "model.head_channels": [32, 64, 128, 256],
        "solver.max_evals": 26,
        "pretrain.layers": 4,
        "optimizer.lr": 0.05,
        "optimizer.weight_decay": 1e-4,
        "batch_size": 128,
    },
    "mdeq-imagenet-large-jr-paper": {
        **IMAGENET,
        "model.channels": [80, 160, 320, 640],
        "solver.max_evals": 14,
        "adjoint.linear.max_evals": 14,
        "regularizer.gamma": 3.0,
        "regularizer.probability": 0.08,
        "optimizer.weight_decay": 1e-4,
    },
    "mdeq-imagenet-xl-paper": {
        **IMAGENET,
        "model.channels": [88, 176, 352, 704],
        "model.head_channels": [32, 64, 128, 256],
        "model.expansion": 6,
        "solver.max_evals": 26,
        "adjoint.linear.max_evals": 27,
        "pretrain.layers": 4,
        "optimizer.lr": 0.05,
        "optimizer.weight_decay": 1e-4,
        "batch_size": 256,
    },
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_papers_recipes_have_the_papers_numbers(name: str) -> None:
    tree = recipes.dump(recipes.load(name))
    given: dict[str, Any] = {}
    for path in PUBLISHED[name]:
        value: Any = tree
        for key in path.split("."):
            value = value[key]
        given[path] = list(value) if isinstance(value, tuple) else value
    assert given == PUBLISHED[name]


def test_the_penalty_on_cifar_ends_where_the_script_ends_it() -> None:
    recipe = recipes.load("mdeq-cifar10-large-jr-paper")
    penalty, steps = recipe.regularizer, 220 * (50_000 // 96)
    assert penalty is not None
    assert penalty.at(89 * (50_000 // 96), steps) == (0.4, 0.02)
    assert penalty.at(91 * (50_000 // 96), steps) == (0.4, 0.0)


def test_the_penalty_on_imagenet_climbs_as_in_the_script() -> None:
    penalty = recipes.load("mdeq-imagenet-small-jr-paper").regularizer
    assert penalty is not None
    steps = 100 * (1_281_167 // 128)
    for climbed in range(10):  # by .1 every 50,000 steps behind the warm-up
        gamma, _ = penalty.at(510_000 + 50_000 * climbed + 25_000, steps)
        assert gamma == pytest.approx(2.5 + 0.1 * climbed)
