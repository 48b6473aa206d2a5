"""Encode an image, a WAV file, a film (a video, an animated image, or a folder of frames) or a
closed mesh as a coordinate network, in one .inr file that `equilibria decode` can decode at any
size.

The network is trained with the recipe image, sound, film or shape, depending on the file, or with
--recipe. By default the whole signal is learned at its original resolution; --task.size and
--task.rate change the resolution, and --task.seconds and --task.frames select a part. Every key of
the recipe is an option, as for `equilibria train`: --model.width 128, --epochs 5, --seed 1.

Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save the training and exit with status 75; the same command
resumes it. The .inr file is written at the end, and is complete or absent.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from equilibria.run import config
from equilibria.run import processes as devices
from equilibria.run import recipe as recipes
from equilibria.run import run as runs
from equilibria.run.cli.output import Output, say
from equilibria.run.cli.parser import Parser, ResumableStop, UserError, name_data
from equilibria.run.cli.status import DONE
from equilibria.run.loop import Interrupted, train
from equilibria.run.memory import free_bytes
from equilibria.run.recipe import Recipe
from equilibria.run.report.words import mib
from equilibria.zoo.signal import data as signals
from equilibria.zoo.signal.data import SignalField
from equilibria.zoo.signal.model.configs import RepresentationConfig
from equilibria.zoo.signal.predict import encode, load
from equilibria.zoo.signal.predict.output import quality, what
from equilibria.zoo.signal.task.reading import SignalRepresentation

LESS_MEMORY = "lower --batch-size, --model.width or --task.size"
"""What to do where the memory does not suffice."""

OWN = ("size", "rate", "start", "seconds", "frames")
"""Task keys of a shipped recipe that apply only to its default data."""

BATCH = 65_536
"""Default limit on the points of a step, whose states are all in memory."""

LEAST_WIDTH = 16
"""Of a network whose width follows from its signal."""

HEADER = 2_000
"""Bytes of a file beside its weights, about."""

ROOM = 0.5
"""Largest fraction of the free memory that the states of all points may take."""


def main(argv: Sequence[str]) -> int:
    """Run `equilibria encode` with the words `argv` and return the exit status."""
    parser = _parser()
    own, overrides = parser.separate(argv)
    arguments = parser.parse_args(own)
    out: Path = arguments.out or Path(f"{arguments.file.stem}.inr")
    if out.suffix.lower() != ".inr":
        raise UserError(f"--out: encoded signals are .inr files; got {out.name}")
    if out.exists() and not arguments.overwrite:
        raise UserError(f"{out} exists: replace it with --overwrite, or name another --out")
    name = arguments.recipe or signals.kind_of(arguments.file)
    given = {key for key, _ in config.pairs(overrides)}
    if taken := given & {"data", "task.data", "task.signal"}:
        raise UserError(
            f"--{taken.pop()} sets the signal, which is {arguments.file} here: leave it out"
        )
    recipe = _recipe(name, arguments.file, overrides)
    device = devices.device(arguments.device)
    console = Output(quiet=arguments.quiet)
    chosen: Any = recipe.task
    with config.as_chosen():
        task = chosen.load()
    signal = task.signal
    about = f"{arguments.file.name}: {what(signal.field)}"
    console.print(about, markup=False, highlight=False, soft_wrap=True)
    if signal.field.kind != "shape":
        count = len(signal.points)
        if "model.width" not in given and arguments.recipe is None:
            recipe = replace(recipe, model=_fit_width(recipe.model, task, recipe.init_from))
            width = cast(Any, recipe.model).width
            why = f"as in {recipe.init_from}" if recipe.init_from else "by the number of samples"
            console.print(f"width {width}, {why}", markup=False, highlight=False)
        if "batch_size" not in given:
            most = BATCH if recipe.batch_size == "all" else recipe.batch_size
            recipe = replace(recipe, batch_size=most if most < count else "all")
        _check_memory(recipe, count, free_bytes(device))
    run = out.with_name(f"{out.name}.run")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        train(
            recipe,
            run,
            resume=runs.Folder(run).recipe.is_file(),
            device=arguments.device,
            console=console,
            command=[name, *overrides],
        )
    except Interrupted:
        raise ResumableStop(
            f"stopped before {out} was written; the training so far is saved in {run}: the same "
            "command continues"
        ) from None
    except runs.RunError as error:
        raise UserError(
            f"{error} {run} belongs to an earlier encoding: use the same options to continue it, "
            "or remove the folder to start over"
        ) from None
    with console.status("Evaluating the stored network ..."):
        model = runs.load(run).model.to(device)
        # Shapes are measured at the noise used in training.
        encoded = encode(out, model, signal, noise=chosen.noise)
    shutil.rmtree(run)
    written = out.stat().st_size
    of = ""
    if signal.field.kind != "shape":
        raw = _count_bytes(signal.field)
        of = f" for {raw:,} bytes of samples"
        if written > raw:
            width = cast(Any, recipe.model).width
            advice = (
                f"lower --model.width, which is {width}"
                if width > LEAST_WIDTH and raw > HEADER
                else "so few samples are no task for a network"
            )
            say(
                console,
                f"warning: {out} is larger than the {raw:,} bytes of the samples that it encodes: "
                f"{advice}",
                "yellow",
            )
    console.finish(
        f"Written to {out}, {written:,} bytes{of}, {quality(encoded.about['quality'])}. "
        f"Decode it: equilibria decode {out}",
        out,
    )
    return DONE


def _parser() -> Parser:
    parser = Parser(
        "encode", __doc__, usage="equilibria encode FILE [-o FILE.inr] [--KEY VALUE ...]"
    )
    parser.add_argument("file", type=Path, help="image, WAV file, film, folder of frames, or mesh")
    parser.add_argument(
        "-o", "--out", type=Path, help="output file, .inr (default: named after the input)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--recipe", type=str, help="recipe, or YAML file (default: depends on the input)"
    )
    parser.add_device()
    return parser


def _recipe(name: str, path: Path, overrides: Sequence[str]) -> Recipe:
    """Return the recipe to train on the user's file."""
    tree = recipes.read(name)
    shipped = recipes.parse(tree, source=f"recipe {name}")
    if not (
        isinstance(shipped.task, SignalRepresentation)
        and isinstance(shipped.model, RepresentationConfig)
    ):
        raise UserError(
            f"recipe {name} is not for signals: use image, sound, film, shape or one of your own"
        )
    own = [f"--task.{key}=null" for key in OWN if name in recipes.available()]
    recipe = recipes.parse(tree, [*own, *overrides], source=f"recipe {name}")
    task: Any = recipe.task
    if task.fit == "gradient":
        raise UserError(
            "--task.fit gradient leaves a constant open, and a file holds values: leave it out"
        )
    return recipes.parse(recipes.dump(recipe), name_data(str(path), task))


def _fit_width(model: Any, task: Any, start: str | None) -> Any:
    """Return a network whose file takes no more bytes than the samples do, as wide as that allows,
    from `LEAST_WIDTH` to its own width; or as wide as the one in the file `start`."""
    if start is not None:
        if not start.endswith(".inr"):
            return model
        return replace(model, width=load(start).about["model"]["width"])
    room = _count_bytes(task.signal.field) - HEADER

    def fits(width: int) -> bool:
        with torch.device("meta"):
            built = task.complete(replace(model, width=width)).build()
        return 4 * sum(each.numel() for each in built.state_dict().values()) <= room

    widths = range(LEAST_WIDTH, model.width, 8)
    fitting = itertools.takewhile(fits, [*widths, model.width])
    return replace(model, width=max(fitting, default=min(LEAST_WIDTH, model.width)))


def _count_bytes(field: SignalField) -> int:
    """Bytes of the samples of a signal as its file has them, uncompressed."""
    return math.prod(field.shape) * field.channels * (field.bits or 8) // 8


def _check_memory(recipe: Recipe, count: int, free: float) -> None:
    """Raise UserError if the states of all points, which `reuse` keeps, do not fit in memory."""
    architecture: Any = recipe.model
    taken = 4 * count * architecture.width
    if recipe.reuse and taken > ROOM * free:
        raise UserError(
            f"the states of {count:,} points take {mib(taken)}, but {mib(free)} "
            "are free: encode less, with --task.size, --task.seconds or --task.frames, or do not "
            "keep states between steps, --reuse false"
        )
