"""Find the optical flow of two images, of a folder of frames or of a video: how far each pixel
moves until the next frame, in pixels.

NETWORK is a run folder, or a .pth file of released weights of RAFT, GMA or deep equilibrium flow
(deq-flow). RAFT and GMA make a fixed number of refinements, as released; with --solver they are
solved for their equilibrium.

Two images: the flow is written to --out, a .flo, .pfm or .png file (KITTI's, 16-bit), and next to
it its colours, a convergence map and a row of figures. Frames: --out is a folder; flow, colours and
convergence map of each pair are written there, the colours with one scale for all, and a row for
each pair in flow.jsonl and flow.csv. A row has the evaluations, how the solve ended, the RMS change
of the flow under one more evaluation in pixels, and milliseconds. A pair that cannot be read gets a
row with the error, and the others are processed all the same. The same command continues where it
was stopped.

With --submit, the test images of a benchmark are processed, and --out gets the layout that its
server expects.

The exit status is 75 after a signal, with all rows saved, 1 if there is no flow or after an error,
and otherwise 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from equilibria import files
from equilibria.run import evaluation, run, stops
from equilibria.run.cli.options import resolve
from equilibria.run.cli.output import Output
from equilibria.run.cli.parser import Parser, ResumableStop, UserError
from equilibria.run.cli.status import DONE, ERROR
from equilibria.run.plugins import SOLVERS
from equilibria.words import others
from equilibria.zoo.flow.commands.words import Totals, describe_row, describe_saving
from equilibria.zoo.flow.data import write_flow
from equilibria.zoo.flow.predict import frames as reader
from equilibria.zoo.flow.predict.engine import (
    FOLDER,
    FlowOptions,
    allow_evals,
    check_pair,
    field_of,
    go_through,
    memory_of,
    row_of,
)
from equilibria.zoo.flow.predict.frames import draw_all, draw_one
from equilibria.zoo.flow.predict.network import FlowNetwork, Wanted, load
from equilibria.zoo.flow.predict.submission import BENCHMARKS
from equilibria.zoo.flow.predict.tracking import Deadline
from equilibria.zoo.io import video
from equilibria.zoo.io.colors import change_colors, color_png
from equilibria.zoo.io.rows import Journal, journal

LESS_MEMORY = "try --correlation on-demand, or smaller images"
"""What to do where the memory does not suffice."""

ENDINGS = (".flo", ".pfm", ".png")
"""Of files of flow."""


_LEAST = {"scale": None, "deadline": None, "fps": None, "rtol": 0, "max_evals": 1, "compare": 0}
"""What numbers must be at least, or None for positive."""


def main(argv: Sequence[str]) -> int:
    """Run `equilibria flow` with the words `argv` and return the exit status."""
    arguments = _parser().parse_args(list(argv))
    _check(arguments)
    console = Output(quiet=arguments.quiet)
    path = Path(arguments.network)
    precision = "float32"
    if run.Folder(path).recipe.is_file():
        precision = run.Folder(path).read_recipe().precision
    accelerator = evaluation.accelerator(precision, arguments.device)
    wanted = Wanted(**{each.name: getattr(arguments, each.name) for each in fields(Wanted)})
    inputs = [Path(each).expanduser() for each in arguments.images]
    pair = len(inputs) == 2 and not any(each.is_dir() for each in inputs)
    if not pair and arguments.out is None:
        raise UserError("name a folder for the results with --out")
    network = load(path, wanted, accelerator)
    if arguments.reuse and network.solver is None:
        raise UserError(
            f"--reuse starts a solve from the last equilibrium, and {network.title} refines a flow "
            f"{network.steps} times: solve it with --solver, for example --solver {SOLVERS[0]}"
        )
    if pair:
        return _two(network, inputs, arguments, console)
    return _many(network, inputs, arguments, console)


def _parser() -> Parser:
    parser = Parser("flow", __doc__)
    add = parser.add_argument
    add("network", type=str, help="run folder, or .pth file of RAFT, GMA or deq-flow")
    add(
        "images",
        type=str,
        nargs="*",
        help="two images, or frames: a folder, a video, or images in order",
    )
    add(
        "--out",
        type=Path,
        help="file to write the flow of two images to (default: the first one's name with .flo), "
        "or folder for the results of frames",
    )
    add("--overwrite", action="store_true", help="start again, and replace earlier results there")
    add(
        "--format",
        type=Literal["flo", "pfm", "png"],
        help="of the flow of frames: flo, pfm or png (default: flo)",
    )
    add(
        "--reuse",
        action="store_true",
        help="start each solve from the previous pair's equilibrium, except across a cut",
    )
    add(
        "--compare",
        type=int,
        metavar="N",
        help="with --reuse: solve every N-th pair from zero too, to measure the saving; 0 for none "
        f"(default: {FlowOptions.compare})",
    )
    add(
        "--deadline",
        type=float,
        metavar="MS",
        help="milliseconds per pair: as many evaluations are made as fit",
    )
    add(
        "--solver",
        type=str,
        help=f"solve with this method under the same limits: {', '.join(SOLVERS)}, or MODULE:CLASS "
        "of one's own",
    )
    add("--rtol", type=float, help="relative tolerance of the solver")
    add(
        "--max-evals",
        type=int,
        help="evaluations per pair, at most; of a network that is not solved, its refinements",
    )
    add(
        "--correlation",
        type=Literal["all-pairs", "on-demand"],
        help="all-pairs takes memory quadratic in the number of pixels, on-demand little memory "
        "and more time (default: as trained, or all-pairs)",
    )
    add(
        "--scale",
        type=float,
        metavar="PIXELS",
        help="length in pixels of the most saturated colour (default: the 99th percentile of all)",
    )
    add(
        "--video",
        type=Path,
        metavar="FILE",
        help="frames: write the colours as a video too, FILE.gif or FILE.mp4",
    )
    add("--fps", type=float, help="its frames per second (default: 15)", metavar="RATE")
    add(
        "--submit",
        type=Literal["sintel", "kitti"],
        help="process the test images of a benchmark: sintel or kitti",
    )
    parser.add_data_dir()
    parser.add_device()
    return parser


def _check(arguments: Any) -> None:
    """Raise UserError for options that nothing can be done with."""
    if arguments.submit and arguments.images:
        raise UserError(
            f"--submit {arguments.submit} processes the benchmark's own test images: leave out "
            f"{arguments.images[0]}"
        )
    if not arguments.submit and not arguments.images:
        raise UserError("name two images, a folder of frames or a video")
    if arguments.data_dir is not None and not arguments.submit:
        raise UserError("--data-dir is for --submit: name the images themselves")
    if arguments.solver is not None:
        arguments.solver = resolve(arguments.solver)
    for name, least in _LEAST.items():
        value = getattr(arguments, name)
        if value is None:
            continue
        if not (value >= least if least is not None else value > 0) or value == math.inf:
            must = "a positive number" if least is None else f"{least} or more"
            raise UserError(f"--{name.replace('_', '-')} must be {must}; got {value:g}")
    if arguments.compare is not None and not arguments.reuse:
        raise UserError("--compare says what --reuse saves: leave it out, or give both")
    if arguments.fps is not None and arguments.video is None:
        raise UserError("--fps is of the video: name its file with --video")
    if arguments.video is not None:
        try:
            video.check_written(arguments.video)
        except ValueError as error:
            raise UserError(f"--video: {error}") from None
    if arguments.submit:
        if arguments.format is not None:
            raise UserError(
                f"--format is for frames of your own: --submit {arguments.submit} writes what the "
                "server takes"
            )
        for name in ("video", "scale"):
            if getattr(arguments, name) is not None:
                raise UserError(f"--{name} is for pictures, which --submit does not draw")
        if arguments.submit == "kitti" and arguments.reuse:
            raise UserError("--reuse is for consecutive frames, and the pairs of KITTI are single")


def _two(network: FlowNetwork, inputs: list[Path], arguments: Any, console: Output) -> int:
    """Find the flow of two images."""
    for name in ("reuse", "video"):
        if getattr(arguments, name):
            raise UserError(f"--{name} is for frames, and two images are one pair: leave it out")
    if arguments.format is not None:
        raise UserError(
            "--format is for frames: for two images the ending of --out decides, for example --out "
            f"{inputs[0].stem}.{arguments.format}"
        )
    out = arguments.out or Path(f"{inputs[0].stem}.flo")
    if out.suffix.lower() not in ENDINGS:
        raise UserError(
            f"--out: flow is written to {', '.join(ENDINGS)} files; got {out.name}. To go through "
            "frames, name their folder"
        )
    beside = {
        "colours": out.with_name(f"{out.stem}-colours.png"),
        "convergence": out.with_name(f"{out.stem}-convergence.png"),
        "row": out.with_name(f"{out.stem}.json"),
    }
    written = (out, *beside.values())
    if same := {each.resolve() for each in inputs} & {each.resolve() for each in written}:
        raise UserError(f"--out would replace an image, {same.pop()}: name another file")
    there = [each for each in written if each.exists()]
    if there and not arguments.overwrite:
        raise UserError(f"{there[0]} exists: replace it with --overwrite, or name another --out")
    (pair,) = reader.pair_frames(reader.find_frames(inputs))
    first, second = pair.first.load(), pair.second.load()
    check_pair(network, pair, first, second)
    _say(console, memory_of(network, *first.shape[1:]))
    options = _options(arguments)
    limit = None
    if options.deadline is not None:
        limit = allow_evals(Deadline(options.deadline), network, first, second)
    found = network.estimate(first, second, max_evals=limit)
    row = row_of(pair, found, network, options, limit=limit)
    flow, cut = field_of(found.flow, out.suffix.lower())
    out.parent.mkdir(parents=True, exist_ok=True)
    write_flow(out, flow)
    scale = draw_one(beside["colours"], found.flow.numpy(), arguments.scale)
    files.write_bytes(beside["convergence"], color_png(change_colors(found.change.numpy())))
    row |= {"flow": out.name, "scale": scale, **({"cut_to_512": cut} if cut else {})}
    files.write_json(beside["row"], {**network.about, **row})
    _say(console, describe_row(row, pair.name))
    colors, convergence, figures = (path.name for path in beside.values())
    console.finish(f"Written to {out}, and beside it {colors}, {convergence} and {figures}", out)
    return DONE


def _options(arguments: Any, **changes: Any) -> FlowOptions:
    given: dict[str, Any] = {"ending": f".{arguments.format or 'flo'}", "reuse": arguments.reuse}
    if arguments.compare is not None:
        given["compare"] = arguments.compare
    if arguments.deadline is not None:
        given["deadline"] = arguments.deadline / 1000
    return FlowOptions(**{**given, **changes})


def _many(network: FlowNetwork, inputs: list[Path], arguments: Any, console: Output) -> int:
    """Find the flow of all pairs of consecutive frames, or of the test images of a benchmark."""
    out: Path = arguments.out
    if arguments.video is not None and arguments.video.resolve() in {p.resolve() for p in inputs}:
        raise UserError(f"--video would replace what is read, {arguments.video}: name another file")
    benchmark = BENCHMARKS.get(arguments.submit)
    if benchmark is None:
        frames = reader.find_frames(inputs, without=out)
        options, inside = _options(arguments), "flow"
        places = [str(path.absolute()) for path in inputs]
        source = places[0] if len(places) == 1 else places
        pairs = reader.pair_frames(frames)
    else:
        root = benchmark.root(arguments.data_dir)
        pairs, inside = benchmark.pairs(root), benchmark.inside
        options = _options(arguments, ending=benchmark.ending, maps=False)
        source = str(root.absolute())
    about = {**network.about, "images": source, **vars(options)}

    def progress(row: Mapping[str, Any]) -> None:
        name = Path(row.get("flow", row["path"])).with_suffix("").as_posix()
        name = name.removeprefix("flow/") if "flow" in row else Path(row["path"]).name
        _say(console, describe_row(row, name))

    with (
        stops.catch() as signals,
        journal(out, about, overwrite=arguments.overwrite, layout=FOLDER) as rows,
        signals.defer(),
    ):
        if begun := len(rows.done):
            console.print(f"{begun:,} pairs already have a row")
        finished = go_through(
            network,
            pairs,
            rows,
            options,
            folder=inside,
            progress=progress,
            announce=partial(_say, console),
            stop=lambda: bool(signals.received),
        )
        rows.tabulate()
        if not finished:
            raise ResumableStop(
                f"stopped after {len(rows.done):,} pairs; all rows are saved in {rows.rows}; the "
                "same command continues"
            )
        totals = Totals()
        for row in rows.read():
            totals.add(row)
        if not totals.read and not totals.errors:
            raise UserError(f"{inputs[0]} has a single frame: optical flow is between two")
        if benchmark is None and totals.read:
            _draw(rows, arguments, console)
    return _summary(rows, totals, network, arguments, console)


def _say(console: Output, text: str, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, soft_wrap=True)


def _draw(rows: Journal, arguments: Any, console: Output) -> None:
    rate = 15.0 if arguments.fps is None else arguments.fps
    if arguments.video is not None:
        arguments.video.parent.mkdir(parents=True, exist_ok=True)
    scale, count, shown = draw_all(rows, arguments.scale, arguments.video, rate)
    given = "" if arguments.scale else ", the 99th percentile of all"
    some = ""
    if arguments.video is not None and shown < count:
        some = f"; {arguments.video} has the {shown:,} that are as large as the first"
    text = f"{count:,} pictures in {rows.folder / 'colours'}: full colour is {scale:.3g} px"
    _say(console, f"{text}{given}{some}")


def _summary(
    rows: Journal, totals: Totals, network: FlowNetwork, arguments: Any, console: Output
) -> int:
    """Say what was found, and return the exit status."""
    say = partial(_say, console)
    count = totals.read + len(totals.errors)
    if totals.errors:
        first = f"{totals.errors[0]}{others(totals.errors)}"
        say(f"{len(totals.errors):,} of {count:,} pairs have no flow: {first}", "yellow")
    if totals.read and network.solver is not None:
        missed = ", all converged"
        if totals.missed:
            missed = f"; {totals.missed:,} of {totals.read:,} solves did not converge"
        say(f"{totals.evaluations / totals.read:.1f} evaluations per pair{missed}")
    if arguments.reuse:
        say(describe_saving(totals))
    if arguments.deadline is not None and totals.read:
        say(
            f"deadline of {arguments.deadline:g} ms: {totals.stopped:,} of {totals.read:,} pairs "
            f"stopped by it, {totals.late:,} late"
        )
    benchmark = BENCHMARKS.get(arguments.submit)
    last = f" {benchmark.next}" if benchmark else ""
    console.finish(f"{totals.read:,} of {count:,} pairs: {rows.table}.{last}", rows.table)
    return DONE if totals.read else ERROR
