"""Train a recipe and write a run folder: the resolved recipe, metrics, weights and checkpoints.

Every key of the recipe is also an option, for example --seed 1, --epochs 3, --solver.history 8
or --solver.name Broyden; `equilibria train RECIPE --help` lists them. Name your own data with
--data: a text FILE (--task.file) for a language model, or a FOLDER (--task.data) with one
subfolder of images per class for a classifier, or with images, masks and classes.txt for
segmentation; graphs are a FILE.npz, or a FOLDER of texts. To train with several processes:
torchrun --nproc-per-node 2 -m equilibria train RECIPE, which share the parameters out by --parallel
fsdp. Under torchrun --max-restarts N, with --auto-resume, it goes on when one of them has died.

Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save after the current step and exit with status 75. A run
folder is all that is needed to go on: equilibria train runs/digits --resume, or, once it has
finished, --extend EPOCHS. Options that would change the result are refused then.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from equilibria.run import config
from equilibria.run import recipe as recipes
from equilibria.run.cli import keys, seeds
from equilibria.run.cli.output import Output
from equilibria.run.cli.parser import Parser, UserError, check_seed, name_data
from equilibria.run.cli.status import DONE
from equilibria.run.loop import train
from equilibria.run.recipe import Recipe
from equilibria.run.run import Folder, RunError


class Request(NamedTuple):
    """What the words of the command line ask for."""

    folder: Folder
    recipe: Recipe
    begins: list[str]
    """The words that describe the recipe, for run.json."""


def main(argv: Sequence[str]) -> int:
    """Run `equilibria train` with the words `argv` and return its exit status."""
    parser = Parser("train", __doc__, usage="equilibria train RECIPE|RUN [--KEY VALUE ...]")
    parser.add_argument(
        "recipe",
        type=str,
        help="name of a recipe (see `equilibria recipes`), a YAML file, or a run folder to go on "
        "with",
    )
    parser.add_argument("--out", type=str, help="run folder (default: runs/RECIPE)")
    parser.add_argument(
        "--data",
        type=str,
        help="data to train on, in place of the recipe's task.data or task.file: your own text "
        "file, .npz file of graphs, image, WAV file or mesh, or folder of images, images and "
        "masks, frames, sequences, or graphs; or name of a data set, with --data-dir for the "
        "folder that holds it",
    )
    parser.add_data_dir()
    parser.add_device()
    _add_modes(parser)
    own, overrides = parser.separate(argv)
    plain = [word for word in own if word not in ("-h", "--help")]
    if len(plain) < len(own):
        with suppress(UserError):  # no recipe is named
            name = parser.parse_args(plain).recipe
            keys.describe(parser, f"recipe {name}", _read(name, overrides), recipes.choices())
    arguments = parser.parse_args(own)
    resume = arguments.resume or arguments.extend is not None
    if arguments.auto_resume and not resume:
        resume = _folder(arguments.recipe, arguments.out).recipe.exists()
    if arguments.seeds is not None:
        _check_seeds(arguments.seeds, arguments, overrides)
    begun = resume and arguments.seeds is None
    asked = _read_request(arguments.recipe, arguments.out, overrides, begun, arguments.data)
    recipe = asked.recipe
    if arguments.extend is not None:
        if arguments.extend < 1:
            raise UserError(f"--extend must be 1 or more epochs; got {arguments.extend}")
        recipe = recipe.extend_by(arguments.extend)
    console = Output(quiet=arguments.quiet)

    def run(recipe: Recipe, folder: Folder, resume: bool) -> None:
        train(
            recipe,
            folder.path,
            data_dir=arguments.data_dir,
            resume=resume,
            device=arguments.device,
            console=console,
            command=asked.begins,
        )

    if arguments.seeds is not None:
        return seeds.train_each(recipe, asked.folder, arguments.seeds, resume, run, console)
    run(recipe, asked.folder, resume)
    if os.environ.get("RANK", "0") == "0":
        path = asked.folder.path
        console.finish(f"The run is in {path}. Next: equilibria report {path}", path)
    return DONE


def _add_modes(parser: Parser) -> None:
    """Add the options that go on with a run, or begin several."""
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in the run folder, from its newest intact checkpoint",
    )
    parser.add_argument(
        "--auto-resume",
        action="store_true",
        help="continue the run if there is one in the run folder, else begin it: for a command "
        "that torchrun or a scheduler starts again",
    )
    parser.add_argument(
        "--extend",
        type=int,
        metavar="EPOCHS",
        help="train a run for so many epochs more; the learning rate's schedule starts again",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="SEED",
        help="train a run for each seed, one after the other, and print the mean of their figures",
    )


def _check_seeds(given: Sequence[int], arguments: Any, overrides: Sequence[str]) -> None:
    """Raise UserError if --seeds does not go with the other words."""
    for seed in given:
        check_seed(seed, "--seeds")
    if len(set(given)) < len(given):
        raise UserError(f"--seeds names a seed twice: {' '.join(map(str, given))}")
    if any(word.partition("=")[0] == "--seed" for word in overrides):
        raise UserError("--seed and --seeds were both given: leave one out")
    if arguments.extend is not None or _is_folder(arguments.recipe):
        raise UserError("--seeds needs a recipe: extend or resume a single run without it")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--seeds trains in one process: start a run for each seed instead")


def _read_request(
    name: str, out: str | None, overrides: list[str], resume: bool, data: str | None
) -> Request:
    """Return which recipe is to be trained in which folder.

    Args:
        name: recipe, YAML file or run folder.
        out: run folder; None for the one that the name implies.
        overrides: options for keys of the recipe.
        resume: the folder holds a run.
        data: the user's data, which for a run may have moved.

    Raises:
        UserError: a run folder is named, and not that it is to be resumed.
        ConfigError: the recipe is not valid.
        RunError: there is no run to resume.
    """
    own, folder = Folder(Path(name)) if _is_folder(name) else None, _folder(name, out)
    if own is not None and not resume:
        raise UserError(
            f"{name} is a folder, not a recipe: to go on with the run in it, add --resume, or "
            "--extend EPOCHS"
        )
    if own is not None and folder.path.resolve() != own.path.resolve():
        raise UserError(f"the run in {name} is continued there: leave --out out")
    if resume and not (own or out or name in recipes.available() or Path(name).is_file()):
        raise RunError(f"there is no run folder {name} to resume, nor a recipe of that name")
    if resume:
        recipe, begins = _resume_recipe(folder, name if own is None else None, overrides), []
    else:
        recipe, begins = recipes.load(name, overrides), [name, *overrides]
    if data is not None:
        named = name_data(data, recipe.task)
        begins += named if begins else []
        recipe = recipes.parse(recipes.dump(recipe), named)
    return Request(folder, recipe, begins)


def _folder(name: str, out: str | None) -> Folder:
    """Return the run folder of a recipe, YAML file or run folder."""
    if out:
        return Folder(Path(out))
    return Folder(Path(name) if _is_folder(name) else Path("runs") / Path(name).stem)


def _is_folder(name: str) -> bool:
    """Return whether a folder is named: not a recipe, whatever there is in the working folder."""
    return name not in recipes.available() and Path(name).is_dir()


def _read(name: str, overrides: list[str]) -> Recipe:
    """Return a recipe, or that of a run folder, under options."""
    if _is_folder(name):
        return _resume_recipe(Folder(Path(name)), None, overrides)
    return recipes.load(name, overrides)


def _resume_recipe(folder: Folder, name: str | None, overrides: list[str]) -> Recipe:
    """Return the recipe of a run under options, which may not change its result.

    Args:
        folder: of the run.
        name: of the recipe that it was begun with, if that is given.
        overrides: options for keys of the recipe.
    """
    if not folder.path.is_dir():
        raise RunError(f"there is no run folder {folder.path} to resume: name it with --out")
    config.admit(overrides)  # solvers of one's own, which the folder then names too
    known = folder.read_recipe()
    with suppress(RunError, LookupError):  # not known: begun in Python, or run.json is damaged
        first = folder.read_info()["command"][0]
        if name is not None and Path(first).stem != Path(name).stem:
            raise UserError(
                f"the run in {folder.path} was begun with the recipe {first}, not {name}: resume "
                f"it with `{folder.resume}`"
            )
    return recipes.parse(recipes.dump(known), overrides, source=f"the recipe of {folder.path}")
