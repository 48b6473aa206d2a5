"""Train a recipe and write a run folder: the resolved recipe, metrics, weights and a checkpoint.

Every key of the recipe is also an option, for example --seed 1, --epochs 3, --solver.history 8
or --solver.name Broyden; `equilibria train RECIPE --help` lists them. Name your own data with
--data: a text FILE (--task.file) for a language model, or a FOLDER (--task.data) with one
subfolder of images per class for an image model. With several processes:
torchrun --nproc-per-node 2 -m equilibria train RECIPE.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from equilibria.cli.parser import Parser, UserError, named_data
from equilibria.train import config
from equilibria.train import recipe as recipes
from equilibria.train.loop import train


def main(argv: Sequence[str]) -> None:
    """Run `equilibria train` with the words `argv`."""
    parser = Parser("train", __doc__, usage="equilibria train RECIPE [--KEY VALUE ...]")
    parser.add_argument(
        "recipe", type=str, help="name of a recipe (see `equilibria recipes`), or a YAML file"
    )
    parser.add_argument("--out", type=str, help="run folder (default: runs/RECIPE)")
    parser.add_argument(
        "--data",
        type=str,
        help="text file or folder of images to train on, or name of a data set",
    )
    parser.add_data_dir()
    parser.add_argument("--resume", action="store_true", help="continue the run in the run folder")
    own, overrides = parser.split(argv)
    plain = [word for word in own if word not in ("-h", "--help")]
    if len(plain) < len(own):
        with suppress(UserError):  # no recipe is named
            name = parser.parse_args(plain).recipe
            group = parser.add_argument_group(f"recipe {name}")
            recipe = recipes.load(name, overrides)
            config.describe(parser, group, recipe, recipes.choices())
    arguments = parser.parse_args(own)
    recipe = recipes.load(arguments.recipe, overrides)
    if arguments.data is not None:
        named = named_data(arguments.data, recipe.task)
        recipe = recipes.load(arguments.recipe, [*overrides, named])
    folder = Path(arguments.out or Path("runs") / Path(arguments.recipe).stem)
    train(recipe, folder, data_dir=arguments.data_dir, resume=arguments.resume, console=Console())
