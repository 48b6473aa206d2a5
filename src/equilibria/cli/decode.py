"""Decode a signal from an .inr file that `equilibria encode` wrote: an image to PNG, a sound to
WAV, a film to a GIF, an MP4 or a folder of frames, a shape to PLY, at any size, rate or resolution.

The network is solved for its equilibrium at each point. Points are processed in chunks; the chunk
size affects memory only. With --gradient, --laplacian and --convergence, further pictures are
written next to the decoded image and named after it; the derivatives are exact, those of the
equilibrium.

The exit status is 1 after an error, and otherwise 0, even if some points did not converge; a
warning reports these.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from equilibria.cli.inr_words import bytes_of, quality, saying, share, what
from equilibria.cli.output import Output
from equilibria.cli.parser import Parser, UserError
from equilibria.cli.status import DONE
from equilibria.data import signals
from equilibria.data.replace import replace_file
from equilibria.predict.representation import pictures
from equilibria.predict.representation.decoder import FEW, Decoder, load
from equilibria.predict.representation.encoding import measure
from equilibria.predict.representation.output import ENDINGS, Gathered, check, held_bytes
from equilibria.predict.representation.view import View, refuse_others
from equilibria.predict.solvers import SOLVERS
from equilibria.solve import SolveWarning
from equilibria.tasks.representation.reading import coloured
from equilibria.train import device as devices
from equilibria.train.memory import free_bytes
from equilibria.words import plural

MAPS = ("gradient", "laplacian", "convergence")
"""Additional pictures of an image."""

ROOM = 0.9
"""Largest fraction of the free memory that a decoded signal may take."""

LESS = {
    "image": "decode a part at a time, with --crop",
    "film": "decode a part at a time, with --frames or --crop",
    "sound": "decode at a lower --rate",
    "shape": "decode at a lower --resolution",
}
"""What to suggest when a signal does not fit in memory."""

METHODS = ("Picard", *(name for name in SOLVERS if name != "Picard"))
"""Names of solvers, the shipped recipes' first."""


def main(argv: Sequence[str]) -> int:
    """Run `equilibria decode` with the words `argv` and return the exit status."""
    arguments = _parser().parse_args(list(argv))
    _check(arguments)
    console = Output(quiet=arguments.quiet)
    decoder = load(arguments.file, device=devices.device(arguments.device))
    field = decoder.field
    refuse_others({name for name in (*MAPS, "fps") if getattr(arguments, name)}, field.kind)
    view = View(
        size=arguments.size,
        scale=arguments.scale,
        crop=arguments.crop,
        rate=arguments.rate,
        frames=arguments.frames,
        resolution=arguments.resolution,
    )
    points = view.points(field)
    decoder = decoder.solved_by(arguments.solver, arguments.rtol, arguments.max_evals)
    out = arguments.out or _usual(arguments.file, field.kind)
    maps = {name: out.with_name(f"{out.stem}-{name}.png") for name in MAPS if arguments[name]}
    check(out, field)
    _check_free(out, maps, arguments)
    if "convergence" in maps and decoder.solver is None:
        raise UserError("--convergence is for equilibrium networks, but this one is explicit")
    original = None if arguments.compare is None else _original(arguments.compare, field)
    taken = held_bytes(
        points,
        field,
        maps="convergence" in maps,
        derivatives=2 * ("gradient" in maps) + ("laplacian" in maps),
    )
    free = free_bytes(torch.device("cpu"))
    if taken > ROOM * free:
        raise UserError(
            f"{len(points):,} points take {bytes_of(taken)}, but {bytes_of(free)} are free: "
            f"{LESS[field.kind]}"
        )
    say = saying(console)
    out.parent.mkdir(parents=True, exist_ok=True)
    about = decoder.about
    say(
        f"{arguments.file.name}: {what(field)}, {about['model']['name']}, "
        f"{quality(about['quality'])} as encoded"
    )
    asked = Asked(decoder, points, arguments.chunk, console, taken)
    found = Gathered(points, field, maps="convergence" in maps)
    with asked.bar("decode", "Decoding") as parts:
        found.add(parts)
    found.write(out, _rate(arguments, field))
    if loud := found.loud:
        warnings.warn(
            f"{loud:,} of {found.values.size:,} samples exceed the range of an integer WAV file: "
            "they are clipped",
            stacklevel=1,
        )
    if found.converged is not None:
        part = found.converged / found.count
        say(f"{found.evaluations / found.count:.1f} evaluations per point, {share(part)}")
        if part < 1:
            warnings.warn(
                f"{found.count - found.converged:,} of {found.count:,} points did not converge: "
                "their values are computed from the best states found. See --convergence, "
                "--max-evals and --solver",
                stacklevel=1,
            )
    if "convergence" in maps:
        _convergence(found, maps["convergence"], say)
    for name, order in (("gradient", 1), ("laplacian", 2)):
        if name in maps:
            _derivative(asked, name, order, maps[name], say)
    if original is not None:
        result = measure(decoder, original, chunk=asked.chunks.get("decode"))
        say(f"{quality(result['quality'])} against {arguments.compare}")
    further = f", together with {', '.join(p.name for p in maps.values())}" if maps else ""
    console.done(f"Written to {out}{further}", out)
    return DONE


def _parser() -> Parser:
    parser = Parser("decode", __doc__)
    parser.add_argument("file", type=Path, help="file that `equilibria encode` wrote")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        help="output file: .png, .wav, .gif or .mp4, .ply; for a film also a new folder "
        "(default: the input's name with -decoded)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    parser.add_argument(
        "--size", type=str, metavar="HxW", help="images, films: height and width in pixels"
    )
    parser.add_argument(
        "--scale", type=float, help="images, films: factor by which height and width grow"
    )
    parser.add_argument(
        "--crop",
        type=str,
        metavar="TOP,LEFT,HEIGHT,WIDTH",
        help="images, films: decode this part, in pixels of the encoded signal",
    )
    parser.add_argument("--rate", type=float, help="sounds: samples per second")
    parser.add_argument(
        "--frames",
        type=str,
        metavar="FIRST:END:STEP",
        help="films: frames from FIRST up to, but excluding, END; 10:20:.5 also decodes in between",
    )
    parser.add_argument(
        "--fps", type=float, help="films: frames per second of the output", metavar="RATE"
    )
    parser.add_argument(
        "--resolution", type=int, help="shapes: points along each axis (default: 128)"
    )
    parser.add_argument(
        "--gradient",
        action="store_true",
        help="images: also write the gradient: white is flat, hue gives the direction",
    )
    parser.add_argument(
        "--laplacian",
        action="store_true",
        help="images: also write the Laplacian, from black (negative) to white (positive)",
    )
    parser.add_argument(
        "--convergence",
        action="store_true",
        help="images: also write a map of the evaluations per pixel, from black (few) to white; "
        "red did not converge",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="measure the PSNR, or the IoU of a shape, against the original file",
    )
    parser.add_argument("--solver", type=str, help=f"solver to use: {', '.join(METHODS)}")
    parser.add_argument("--rtol", type=float, help="relative tolerance of the solver")
    parser.add_argument("--max-evals", type=int, help="maximum number of evaluations per point")
    parser.add_argument(
        "--chunk",
        type=int,
        metavar="POINTS",
        help="points to decode at a time (default: as many as fit into a quarter of the free "
        "memory, at most 16384)",
    )
    parser.add_device()
    return parser


def _check(arguments: Any) -> None:
    """Raise UserError for invalid options, and parse those that hold several numbers."""
    if arguments.size is not None:
        arguments.size = _numbers("size", arguments.size, "x", int, "HxW such as 480x640", 2)
    if arguments.crop is not None:
        arguments.crop = _numbers(
            "crop", arguments.crop, ",", float, "TOP,LEFT,HEIGHT,WIDTH such as 0,0,64,64", 4
        )
    if arguments.frames is not None:
        arguments.frames = _frames(arguments.frames)
    if arguments.size is not None and arguments.scale is not None:
        raise UserError("--size and --scale both set the size of the image: give only one")
    for name in ("scale", "rate", "fps"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name} must be a positive number; got {value:g}")
    if arguments.rate is not None and arguments.rate != round(arguments.rate):
        raise UserError(
            "--rate must be a whole number of samples per second, as WAV files have; got "
            f"{arguments.rate:g}"
        )
    for name in ("max_evals", "chunk"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be 1 or more; got {value}")
    if arguments.rtol is not None and not 0 <= arguments.rtol < math.inf:
        raise UserError(f"--rtol must be 0 or more; got {arguments.rtol:g}")
    if arguments.solver is not None:
        known = {name.casefold(): name for name in METHODS}
        if (name := known.get(arguments.solver.casefold())) is None:
            raise UserError(
                f"--solver must be one of {', '.join(METHODS)}; got '{arguments.solver}'"
            )
        arguments.solver = name


def _numbers(
    option: str, text: str, between: str, kind: type, expected: str, count: int
) -> tuple[Any, ...]:
    try:
        found = tuple(kind(each) for each in text.lower().split(between))
    except ValueError:
        found = ()
    if len(found) != count:
        raise UserError(f"--{option} expects {expected}; got '{text}'")
    return found


def _frames(text: str) -> tuple[float | None, float | None, float | None]:
    """Parse FIRST:END:STEP; a single number is one frame."""
    parts = text.split(":")
    try:
        found = [float(each) if each else None for each in parts]
    except ValueError:
        found = []
    if len(found) == 1 and found[0] is not None:
        return found[0], found[0] + 0.5, None
    if not 2 <= len(found) <= 3:
        raise UserError(f"--frames expects FIRST:END:STEP such as 10:20:.5; got '{text}'")
    first, end, step = [*found, None][:3]
    return first, end, step


def _original(path: Path, field: Any) -> signals.Signal | signals.Shape:
    """The original signal; pictures with the size and colours that were encoded, sounds resampled.

    Raises:
        UserError: it is not the signal that was encoded.
    """
    found = signals.read(path)
    if isinstance(found, signals.Signal) and found.field.kind == field.kind:
        if field.kind == "sound" and found.field.rate != field.rate == round(field.rate):
            found = signals.read_sound(path, round(field.rate))
        elif field.kind != "sound":
            if found.field.shape[-2:] != field.shape[-2:]:
                found = found.resized(field.shape[-2:])
            if {found.field.channels, field.channels} == {1, 3}:
                found = coloured(found, field.channels)
    mine, its = ((f.kind, getattr(f, "shape", ()), f.outputs) for f in (field, found.field))
    if mine != its:
        part = ", of which a part was encoded: compare with that part"
        shorter = mine[0] == its[0] and mine[1][:1] < its[1][:1]
        raise UserError(
            f"--compare: {path} is {what(found.field)}{part if shorter else ''}, but the "
            f"encoded signal is {what(field)}"
        )
    return found


def _usual(path: Path, kind: str) -> Path:
    return Path(f"{path.stem}-decoded{ENDINGS[kind][0]}")


def _check_free(out: Path, maps: dict[str, Path], arguments: Any) -> None:
    written = (out, *maps.values())
    inputs = {p.resolve() for p in (arguments.file, arguments.compare) if p is not None}
    if same := inputs & {each.resolve() for each in written}:
        raise UserError(f"--out would replace the input {same.pop()}: name another file")
    there = [each for each in written if each.exists()]
    if there and (there[0].is_dir() or not arguments.overwrite):
        how = "remove it" if there[0].is_dir() else "replace it with --overwrite"
        raise UserError(f"{there[0]} exists: {how}, or name another --out")


def _rate(arguments: Any, field: Any) -> float | None:
    """Samples or frames per second of the output."""
    if field.kind == "sound":
        return arguments.rate
    if field.kind != "film" or arguments.fps is not None:
        return arguments.fps
    step = arguments.frames[2] if arguments.frames else None
    return None if field.rate is None or step is None else field.rate / step


class Asked:
    """Decodes at some points, with a progress bar."""

    def __init__(
        self,
        decoder: Decoder,
        points: signals.Points,
        chunk: int | None,
        console: Output,
        held: int,
    ) -> None:
        self.decoder, self.points, self.console = decoder, points, console
        self.given, self.held = chunk, held
        self.chunks: dict[str, int] = {}

    @contextmanager
    def bar(self, kind: Any, doing: str) -> Iterator[Any]:
        """Decode chunk by chunk, after printing the memory that this takes."""
        count = len(self.points)
        said, chunk = f"{doing}: {plural(count, 'point')}", self.given
        if count > FEW:  # else measuring the memory would take longer than decoding
            each = self.decoder.point_bytes(kind)
            chunk = min(chunk or self.decoder.chunk_of(each), count)
            said += (
                f", {chunk:,} at a time: {bytes_of(chunk * each)}, and {bytes_of(self.held)} for "
                "the result"
            )
        saying(self.console)(said)
        self.chunks[kind] = chunk = chunk or count
        console = self.console
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=console.quiet or not console.is_terminal,
        ) as bar:
            shown = bar.add_task(doing, total=len(self.points))
            yield self.decoder.stream(
                kind,
                self.points,
                chunk=chunk,
                progress=lambda count: bar.advance(shown, count),
            )


def _convergence(found: Gathered, path: Path, say: Callable[[str], None]) -> None:
    assert found.evals is not None and found.settled is not None
    shape = found.points.shape
    evals, settled = found.evals.reshape(shape), found.settled.reshape(shape)
    picture = pictures.convergence_colours(evals, settled)
    replace_file(path, pictures.png(picture.transpose(1, 2, 0)))
    red = "" if settled.all() else "; red did not converge"
    say(f"Convergence: black is {evals.min()} evaluations, white {evals.max()}{red}")


def _derivative(
    asked: Asked, name: str, order: int, path: Path, say: Callable[[str], None]
) -> None:
    """Draw the gradient or the Laplacian of an image."""
    field: Any = asked.decoder.field
    parts: list[np.ndarray] = []
    missed = 0
    with (
        warnings.catch_warnings(record=True) as caught,
        asked.bar("gradient" if order == 1 else "hessian", name.capitalize()) as decoded,
    ):
        warnings.simplefilter("always")
        for part in decoded:
            parts.append(pictures.per_pixel(part.values, field, order))
            missed += 0 if part.settled is None else int((~part.settled).sum())
    values = np.concatenate(parts)
    values = values.reshape(*asked.points.shape, *values.shape[1:])
    if order == 1:
        scale = pictures.scale_of(np.linalg.norm(values, axis=-1))
        picture = pictures.gradient_colours(values, scale)
        said = f"Gradient: full saturation is a slope of {scale:.3g} levels per pixel"
    else:
        scale = pictures.scale_of(values)
        picture = pictures.laplacian_colours(values, scale)
        said = f"Laplacian: white is {scale:.3g} levels per pixel squared, black the negative"
    replace_file(path, pictures.png(picture.transpose(1, 2, 0)))
    say(f"{said}, the 99th percentile")
    unsolved = any(issubclass(each.category, SolveWarning) for each in caught)
    if missed or unsolved:
        count = f"{missed:,} of {len(asked.points):,} points" if missed else "some points"
        warnings.warn(
            f"{name}: solves at {count} did not converge, so it is inexact there; a larger "
            "--max-evals may help",
            stacklevel=1,
        )
