"""Encode an image, a WAV file, a film (a video, an animated image, or a folder of frames) or a
closed mesh as a coordinate network, in one .inr file that `equilibria decode` can decode at any
size.

The network is trained with the recipe image, sound, film or shape, depending on the file, or with
--recipe. By default the whole signal is learned at its original resolution; --size and --task.rate
change the resolution, and --task.seconds and --task.frames select a part. Every key of the recipe
is an option, as for `equilibria train`: --seed 1, --optimiser.lr 1e-3, --model.name isiren.

Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save the training and exit with status 75; the same command
resumes it. The .inr file is written at the end, and is complete or absent.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from equilibria.cli.inr_words import bytes_of, quality, saying, share, what
from equilibria.cli.output import Output
from equilibria.cli.parser import Parser, Stopped, UserError, named_data
from equilibria.cli.status import DONE
from equilibria.data import signals
from equilibria.models.representation.configs import RepresentationConfig
from equilibria.predict.representation import file
from equilibria.predict.representation.encoding import Encoded, encode, offset
from equilibria.predict.representation.file import Contents
from equilibria.tasks import SignalRepresentation
from equilibria.train import config
from equilibria.train import device as devices
from equilibria.train import recipe as recipes
from equilibria.train import run as runs
from equilibria.train.loop import Interrupted, train
from equilibria.train.memory import free_bytes
from equilibria.train.recipe import Recipe
from equilibria.train.weights import save_weights

OWN = ("size", "rate", "start", "seconds", "frames")
"""Task keys of a shipped recipe that apply only to its default data."""

SOLVING = ("solver", "eval_solver", "adjoint", "reuse")
"""Recipe keys that do not apply to an explicit network."""

BATCH = 65_536
"""Default limit on the points of a step, whose states are all in memory."""

ROOM = 0.5
"""Largest fraction of the free memory that the states of all points may take."""


def main(argv: Sequence[str]) -> int:
    """Run `equilibria encode` with the words `argv` and return the exit status."""
    parser = _parser()
    own, overrides = parser.split(argv)
    arguments = parser.parse_args(own)
    out: Path = arguments.out or Path(f"{arguments.file.stem}.inr")
    _check_out(out, arguments)
    run, kept = arguments.run or out.with_name(f"{out.name}.run"), arguments.run is not None
    begin = None if arguments.begin is None else file.read(arguments.begin)
    kind = signals.kind_of(arguments.file)
    if begin is not None and begin.field.kind != kind:
        raise UserError(f"--from: {arguments.begin} is {what(begin.field)}, not a {kind}")
    name = arguments.recipe or kind
    recipe = _recipe(name, arguments, overrides, kind, begin)
    device = devices.device(arguments.device)
    console = Output(quiet=arguments.quiet)
    say = saying(console)
    with config.as_chosen():
        task: Any = recipe.task.load()
    signal = task.signal
    say(f"{arguments.file.name}: {what(signal.field)}")
    if begin is not None and begin.field.outputs != signal.field.outputs:
        grey = f", or convert this one, --task.channels {begin.field.outputs}"
        raise UserError(
            f"--from: {arguments.begin} is {what(begin.field)}, but {arguments.file} is "
            f"{what(signal.field)}: start from one with as many channels"
            f"{grey if kind in ('image', 'film') else ''}"
        )
    recipe = _within_memory(recipe, signal, overrides, device)
    out.parent.mkdir(parents=True, exist_ok=True)
    start = run.with_name(f"{run.name}.start.safetensors")
    if begin is not None:
        save_weights(start, file.build(begin))
        recipe = replace(recipe, init_from=str(start.absolute()))
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
        raise Stopped(
            f"stopped before {out} was written; the training so far is saved in {run}: the same "
            "command continues"
        ) from None
    except runs.RunError as error:
        raise UserError(
            f"{error} {run} belongs to an earlier encoding: use the same options to continue it, "
            "or remove the folder to start over"
        ) from None
    loaded = runs.load(run)
    with console.status("Evaluating the stored network ..."):
        model = loaded.model.to(device)
        assert isinstance(recipe.task, SignalRepresentation)
        if recipe.task.fit == "gradient":
            offset(model, signal)
        # Shapes are measured at the noise used in training.
        encoded = encode(out, model, signal, noise=recipe.task.noise)
    _tell(encoded, say)
    if not kept:
        shutil.rmtree(run)
    if not kept or begin is None:
        start.unlink(missing_ok=True)
    console.done(f"Written to {out}. Decode it: equilibria decode {out}", out)
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
        "--size",
        type=int,
        metavar="PIXELS",
        help="images, films: resize to this length of the longer side (default: keep the size)",
    )
    parser.add_argument(
        "--width", type=int, help="width of the network: quality and file size grow with it"
    )
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    parser.add_argument("--seed", type=int, help="random seed (default: the recipe's)")
    parser.add_argument(
        "--recipe", type=str, help="recipe, or YAML file (default: depends on the input)"
    )
    parser.add_argument(
        "--from",
        dest="begin",
        type=Path,
        metavar="FILE.inr",
        help="start from the network in this file, for example the previous frame's",
    )
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="keep the run folder here (default: one next to --out, removed at the end)",
    )
    parser.add_device()
    return parser


def _check_out(out: Path, arguments: Any) -> None:
    """Refuse an output that cannot be written, before any training."""
    if out.suffix.lower() != ".inr":
        raise UserError(f"--out: encoded signals are .inr files; got {out.name}")
    if arguments.begin is not None and out.resolve() == arguments.begin.resolve():
        raise UserError(f"--out would replace the file given by --from, {out}: name another file")
    if out.exists() and not arguments.overwrite:
        raise UserError(f"{out} exists: replace it with --overwrite, or name another --out")
    for name in ("steps", "width"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} must be 1 or more; got {value}")


def _recipe(
    name: str, arguments: Any, overrides: list[str], kind: str, begin: Contents | None
) -> Recipe:
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
    given = {key for key, _ in config.pairs(overrides)}
    if taken := given & {"data", "task.data", "task.signal"}:
        raise UserError(
            f"--{taken.pop()} sets the signal, which is {arguments.file} here: leave it out"
        )
    if begin is not None:
        if taken := [key for key in given if key.startswith("model.")] or (
            ["width"] if arguments.width is not None else []
        ):
            raise UserError(
                f"--from fixes the architecture: leave out --{taken[0].replace('_', '-')}"
            )
        tree = {**tree, "model": config.dump(begin.network.model, recipes.choices())}
        if begin.network.solver is None:  # an explicit network: nothing to solve
            tree = {key: value for key, value in tree.items() if key not in SOLVING}
    options = [f"--task.{key}=null" for key in OWN if name in recipes.available()]
    chosen = {"task.size": arguments.size, "model.width": arguments.width, "seed": arguments.seed}
    for key, value in chosen.items():
        if value is not None:
            if key in given:
                raise UserError(
                    f"--{key.rpartition('.')[2]} and --{key} were both given: leave one out"
                )
            options.append(f"--{key}={value}")
    recipe = recipes.parse(tree, [*options, *overrides], source=f"recipe {name}")
    if arguments.size is not None and kind not in ("image", "film"):
        raise UserError(f"--size is for images and films, but {arguments.file.name} is a {kind}")
    if arguments.steps is not None:
        if both := given & {"epochs", "epoch_steps"}:
            raise UserError(f"--steps and --{both.pop()} were both given: leave one out")
        # Each epoch ends with an evaluation.
        epochs = recipe.epochs if arguments.steps % recipe.epochs == 0 else 1
        recipe = replace(recipe, epochs=epochs, epoch_steps=arguments.steps // epochs)
    named = named_data(str(arguments.file), recipe.task)
    return recipes.parse(recipes.dump(recipe), named)


def _within_memory(
    recipe: Recipe, signal: Any, overrides: Sequence[str], device: torch.device
) -> Recipe:
    """Return the recipe with a batch size that fits in memory and does not exceed the signal.

    Raises:
        UserError: the states of all points, which `reuse` keeps, do not fit.
    """
    if signal.field.kind == "shape":
        return recipe
    count = len(signal.points)
    if "batch_size" not in {key for key, _ in config.pairs(overrides)}:
        most = BATCH if recipe.batch_size == "all" else recipe.batch_size
        recipe = replace(recipe, batch_size=most if most < count else "all")
    architecture: Any = recipe.model
    taken, free = 4 * count * architecture.width, free_bytes(device)
    if recipe.reuse and taken > ROOM * free:
        less = {
            "sound": "encode a part, --task.seconds 5",
            "film": "encode less, --size or --task.frames",
        }
        raise UserError(
            f"the states of {count:,} points take {bytes_of(taken)}, but {bytes_of(free)} are "
            f"free: {less.get(signal.field.kind, 'choose a smaller --size')}, or do not keep "
            "states between steps, --reuse false"
        )
    return recipe


def _tell(encoded: Encoded, say: Any) -> None:
    """Print quality and size."""
    found = encoded.contents
    solved = ""
    if found.converged is not None and found.evaluations is not None:
        solved = f", {share(found.converged)}, {found.evaluations:.1f} evaluations per point"
    say(f"{quality(found.quality)}{solved}")
    rate = ""
    if encoded.rate is not None:
        unit = "sample" if found.field.kind == "sound" else "pixel"
        rate = f", {encoded.rate:{'.3g' if encoded.rate < 1000 else ',.0f'}} bits per {unit}"
    say(f"{encoded.bytes:,} bytes{rate}")
