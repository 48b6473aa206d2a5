"""Decode a signal from an .inr file that `equilibria encode` wrote: an image to PNG, a sound to
WAV, a film to a GIF, an MP4 or a folder of frames, a shape to PLY, at any size, rate or resolution.

The network is solved for its equilibrium at each point. Points are processed in chunks; the chunk
size affects memory only. With --gradient and --laplacian, further pictures are written next to the
decoded image and named after it; the derivatives are exact, those of the equilibrium.

The exit status is 1 after an error, and otherwise 0, even if some points did not converge; a
warning reports these.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from equilibria.run import processes as devices
from equilibria.run.cli.output import Output
from equilibria.run.cli.parser import Parser, UserError
from equilibria.run.cli.status import DONE
from equilibria.run.memory import free_bytes
from equilibria.run.report.words import mib
from equilibria.solve import SolveWarning
from equilibria.zoo.signal.data import Points
from equilibria.zoo.signal.predict.decoder import CHUNK, load
from equilibria.zoo.signal.predict.output import (
    ENDINGS,
    check,
    draw,
    per_pixel,
    quality,
    what,
    write,
)

LESS_MEMORY = "lower --chunk"
"""What to do where the memory does not suffice for other reasons than the signal's own size."""

RESOLUTION = 128
"""Points along each axis of a decoded shape, by default."""

FOR: Mapping[str, tuple[str, ...]] = {
    "size": ("image", "film"),
    "scale": ("image", "film"),
    "crop": ("image", "film"),
    "rate": ("sound",),
    "frames": ("film",),
    "resolution": ("shape",),
    "gradient": ("image",),
    "laplacian": ("image",),
}
"""Options, and the kinds of signals that they are for."""

MAPS = ("gradient", "laplacian")
"""Additional pictures of an image."""

LOUD = 0.01
"""How far above 1 a sample of a sound counts as clipped: a full-scale one is fitted to within its
error."""

LESS: Mapping[str, str] = {
    "image": "lower --size, or decode a part, --crop",
    "sound": "lower --rate",
    "film": "decode a part, --frames or --crop",
    "shape": "lower --resolution",
}
"""What to do when a signal does not fit in memory."""

HELD: Mapping[str, int] = {"image": 32, "sound": 32, "film": 12, "shape": 32}
"""Bytes for each value of a decoded signal: as float32, and in float64 while it is written; a film
is written frame by frame."""


def main(argv: Sequence[str]) -> int:
    """Run `equilibria decode` with the words `argv` and return the exit status."""
    arguments = _parser().parse_args(list(argv))
    decoder = load(arguments.file, device=devices.device(arguments.device))
    field: Any = decoder.field
    for name, kinds in FOR.items():
        given = arguments[name] is not None and arguments[name] is not False
        if given and field.kind not in kinds:
            raise UserError(
                f"--{name} is for {' and '.join(f'{each}s' for each in kinds)}, and this is "
                f"{what(field)}: leave it out"
            )
    points, rate = _choose_points(arguments, field)
    out = arguments.out or Path(f"{arguments.file.stem}-decoded{ENDINGS[field.kind][0]}")
    maps = {name: out.with_name(f"{out.stem}-{name}.png") for name in MAPS if arguments[name]}
    check(out, field)
    for path in (out, *maps.values()):
        if path.is_dir() or (path.exists() and not arguments.overwrite):
            how = "remove it" if path.is_dir() else "replace it with --overwrite"
            raise UserError(f"{path} exists: {how}, or name another --out")
    taken = HELD[field.kind] * len(points) * field.outputs
    free = free_bytes(torch.device("cpu"))
    if taken > free:
        raise UserError(
            f"{len(points):,} points take {mib(taken)}, but {mib(free)} are "
            f"free: {LESS[field.kind]}"
        )
    if (evals := arguments.max_evals) is not None:
        if decoder.solver is None:
            raise UserError("--max-evals: this network is explicit, and solves nothing")
        if evals < 1:
            raise UserError(f"--max-evals must be 1 or more; got {evals}")
        decoder = replace(decoder, solver=replace(decoder.solver, max_evals=evals))
    console = Output(quiet=arguments.quiet)
    about = f"{what(field)}, {quality(decoder.about['quality'])} as encoded"
    console.print(f"{arguments.file.name}: {about}", markup=False, highlight=False, soft_wrap=True)
    out.parent.mkdir(parents=True, exist_ok=True)

    def options(doing: str) -> dict[str, Any]:
        hidden = console.quiet or not console.is_terminal
        bar = partial(track, description=doing, console=console, disable=hidden)
        return {"chunk": arguments.chunk, "progress": bar}

    found = decoder.decode(points, **options("Decoding"))
    if missed := int((~found.converged).sum()):
        warnings.warn(
            f"{missed:,} of {len(points):,} points did not converge: their values are computed "
            "from the best states found. More --max-evals may help",
            stacklevel=1,
        )
    if field.kind == "sound":
        loud = int((found.values.abs() * field.high > 1 + LOUD).sum())
        if loud:
            warnings.warn(f"{loud:,} samples exceed ±1, and are clipped in the file", stacklevel=1)
    write(out, found.values, field, rate)
    written = str(out)
    with warnings.catch_warnings():
        # Of each chunk; the decoder says of how many points in all.
        warnings.filterwarnings("ignore", r"fixed_point|the adjoint", SolveWarning)
        if "gradient" in maps:
            slopes = per_pixel(decoder.gradient(points, **options("Gradient")), field, 1)
            scale = draw(maps["gradient"], slopes)
            written += f", {maps['gradient']} (saturated: {scale:.3g} levels per pixel)"
        if "laplacian" in maps:
            curved = per_pixel(decoder.hessian(points, **options("Laplacian")), field, 2)
            scale = draw(maps["laplacian"], curved)
            written += f", {maps['laplacian']} (white: {scale:.3g} levels per pixel squared)"
    console.finish(f"Written to {written}", out)
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
    parser.add_argument("--rate", type=int, help="sounds: samples per second")
    parser.add_argument(
        "--frames",
        type=str,
        metavar="FIRST:END:STEP",
        help="films: frames from FIRST up to, but excluding, END; 10:20:.5 also decodes in between",
    )
    parser.add_argument(
        "--resolution", type=int, help=f"shapes: points along each axis (default: {RESOLUTION})"
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
    parser.add_argument("--max-evals", type=int, help="maximum number of evaluations per point")
    parser.add_argument(
        "--chunk",
        type=int,
        metavar="POINTS",
        default=CHUNK,
        help=f"points to decode at a time (default: {CHUNK}); fewer take less memory",
    )
    parser.add_device()
    return parser


def _choose_points(arguments: Any, field: Any) -> tuple[Points, float | None]:
    """The points at which to decode, and samples or frames per second of the output."""
    size = _parse_numbers("size", arguments.size, "480x640", "x", int)
    crop: Any = _parse_numbers("crop", arguments.crop, "0,0,64,64", ",", float)
    if arguments.scale is not None:
        if size is not None:
            raise UserError("--size and --scale both set the size: give only one")
        if not 0 < arguments.scale < math.inf:
            raise UserError(f"--scale must be a positive number; got {arguments.scale:g}")
        sides = field.shape[-2:] if crop is None else crop[2:]
        if not all(map(math.isfinite, sides)):
            raise UserError(f"--crop expects finite numbers; got '{arguments.crop}'")
        size = [max(1, round(arguments.scale * side)) for side in sides]
    frames = arguments.frames
    if frames is not None and frames.count(":") == 1:
        frames += ":"
    part = _parse_numbers(
        "frames", frames, "10:20:.5", ":", lambda each: float(each) if each else None
    )
    try:
        if field.kind == "shape":
            resolution = arguments.resolution
            return field.points(RESOLUTION if resolution is None else resolution), None
        if field.kind == "sound":
            rate = arguments.rate
            return field.points(time=None if rate is None else field.ticks(rate)), rate
        if part is None:
            return field.points(size=size, box=crop), None
        start, end, step = part
        step = 1.0 if step is None else step
        time = field.steps(start or 0.0, end, step)
        return field.points(size=size, box=crop, time=time), field.rate and field.rate / step
    except (ValueError, OverflowError) as error:
        given = [f"--{name}" for name in FOR if getattr(arguments, name) not in (None, False)]
        raise UserError(f"{', '.join(given) or field.kind}: {error}") from None


def _parse_numbers(
    name: str, text: str | None, example: str, between: str, number: Callable[[str], Any]
) -> list[Any] | None:
    """Read an option of as many numbers as an example has."""
    if text is None:
        return None
    try:
        found = [number(each) for each in text.lower().split(between)]
    except ValueError:
        found = []
    if len(found) != len(example.split(between)):
        raise UserError(f"--{name} expects numbers such as {example}; got '{text}'")
    return found
