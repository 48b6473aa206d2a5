"""The networks that are compared on CamVid, all about as large as the multiscale one."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from equilibria.run import recipe as recipes
from equilibria.run.models import ModelConfig
from equilibria.run.recipe import Recipe
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Chart, Lines, mean, median, number, spread
from equilibria.run.studies.views.tables import Column
from equilibria.zoo.vision.model import segmentation
from equilibria.zoo.vision.model.explicit import UNetConfig
from papers.measures import counterpart

SEEDS: Sequence[int] = (0, 1, 2)
LAYERS = 6

NAMES: Mapping[str, str] = {
    "mdeq": "MDEQ",
    "unrolled": f"its cell unrolled, {LAYERS} layers",
    "single": "single-stream DEQ",
    "unet": "U-Net",
}


QUALITY: Mapping[str, Column] = {
    "seeds": number("miou"),
    "mean IoU, %": spread("miou", 100),
    "pixel accuracy, %": mean("pixel_accuracy", 100),
}
"""Columns of what a network's trainings are worth on the test images."""

COSTS: Mapping[str, Column] = {
    "converged, %": mean("converged", 100),
    "minutes": median("seconds", 1 / 60),
}


def chart_validation(factor: str, words: Mapping[str, str]) -> Chart:
    """Return the mean IoU of the validation images after each epoch, a band for each level."""
    lines = Lines("epoch", "valid_miou", by=[factor], label=words, band=True, scale=100)
    return lines.chart("Validation images after each epoch", "epoch", "mean IoU, %", whole_x=True)


def recipe_of(network: str, seed: int = 0, *options: str) -> Recipe:
    """Return the recipe camvid with one of `NAMES`, everything else equal.

    The single-stream network works at a quarter of the image's side, the multiscale one from a half
    down: an evaluation of its cell then takes about as long.

    Args:
        network: key of `NAMES`.
        seed: of the run.
        options: of the recipe, as on the command line.
    """
    recipe: Any = recipes.load("camvid", [*options, "--seed", str(seed)])
    if network == "mdeq":
        return recipe
    cell = cast(segmentation.MDEQSegmentationConfig, recipe.model)
    if network == "unrolled":
        given = {each.name: getattr(cell, each.name) for each in fields(cell)}
        model: ModelConfig = segmentation.MDEQSegmentationUnrolledConfig(**given, layers=LAYERS)
    elif network == "single":
        made = [replace(cell, channels=(8 * k,), halvings=2) for k in range(1, 17)]
        model = _nearest(cell, made)
    else:
        made = [UNetConfig(widths=(k, 2 * k, 4 * k, 8 * k)) for k in range(2, 40)]
        model = _nearest(cell, made)
    return counterpart.with_model(recipe, model, f"{NAMES[network]}: {recipe.description}")


def _nearest(cell: ModelConfig, made: Sequence[ModelConfig]) -> ModelConfig:
    """The config whose number of parameters is the nearest to the cell's network."""

    def size(config: Any) -> int:
        return counterpart.parameters(replace(config, shape=(3, 120, 160), classes=11))

    aim = size(cell)
    return min(made, key=lambda each: abs(size(each) - aim))


def training_of(network: str, seed: int = 0, *options: str) -> Training:
    """Return the training of a network; the arguments are those of `recipe_of`."""
    return Training(recipe_of(network, seed, *options), 10)
