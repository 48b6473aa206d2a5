"""Train a recipe and leave a run folder: the resolved recipe, metrics, weights and a checkpoint.

Every key of the recipe is an option as well, for example --seed 1, --epochs 3, --solver.history 8
or --solver.name Broyden; `equilibria train RECIPE --help` lists them. Data of your own are named
with --data: a text FILE (--task.file) for a recipe of a language model, and for one of images a
FOLDER (--task.data) that has a folder of images for each class. With several processes:
torchrun --nproc-per-node 2 -m equilibria train RECIPE.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from equilibria.cli.parser import Parser
from equilibria.tasks import TaskConfig
from equilibria.train import config
from equilibria.train import recipe as recipes
from equilibria.train.trainer import train


def main(argv: Sequence[str]) -> None:
    """Run `equilibria train` with the words `argv`."""
    own, overrides = _split(argv)
    parser = Parser("train", __doc__, usage="equilibria train RECIPE [--KEY VALUE ...]")
    parser.add_argument(
        "recipe", type=str, help="name of a recipe (see `equilibria recipes`), or a YAML file"
    )
    parser.add_argument("--out", type=str, help="run folder (default: runs/RECIPE)")
    parser.add_argument(
        "--data",
        type=str,
        help="text file or folder of images to learn from, or name of a data set",
    )
    parser.add_argument(
        "--data-dir",
        type=str,
        help="folder to look for data sets in, before $EQUILIBRIA_DATA and a download",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run that is in the run folder"
    )
    names = [word for word in own if not word.startswith("-")]
    if names and {"-h", "--help"} & set(own):
        recipe = recipes.load(names[0], overrides)
        group = parser.add_argument_group(f"recipe {names[0]}")
        tree = recipes.dump(recipe)
        config.add_arguments(group, recipes.Recipe, tree, recipes.CHOICES, default=recipe)
    arguments = parser.parse_args(own)
    recipe = recipes.load(arguments.recipe, overrides)
    if arguments.data is not None:
        recipe = recipes.load(arguments.recipe, [*overrides, _named(arguments.data, recipe.task)])
    folder = Path(arguments.out or Path("runs") / Path(arguments.recipe).stem)
    data_dir = Path(arguments.data_dir) if arguments.data_dir else None
    train(recipe, folder, data_dir=data_dir, resume=arguments.resume, console=Console())


def _named(value: str, task: TaskConfig) -> str:
    """Return the option of the recipe that names data of the user's.

    The path of a file or a folder becomes absolute: the run folder holds it, and the run may be
    evaluated from another working directory.

    Raises:
        ConfigError: the task makes its data itself.
    """
    path = Path(value).expanduser().absolute()
    if hasattr(task, "file"):
        return f"--task.file={path}"
    if hasattr(task, "data"):
        return f"--task.data={path if path.is_dir() or Path(value).name != value else value}"
    raise config.ConfigError(
        f"--data names a text or images, and {type(task).__name__} makes its data itself: "
        "leave it out"
    )


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words for the command itself and those that override keys of the recipe."""
    own: list[str] = []
    overrides: list[str] = []
    target = own
    for word in argv:
        if word.startswith("--"):
            name, equals, _ = word.partition("=")
            mine = name in ("--out", "--data", "--data-dir", "--resume", "--help")
            (own if mine else overrides).append(word)
            takes_value = not equals and name not in ("--resume", "--help")
            target = (own if mine else overrides) if takes_value else own
        else:
            target.append(word)
            target = own
    return own, overrides
