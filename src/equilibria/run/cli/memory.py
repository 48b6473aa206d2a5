"""Measure the memory of a training step of a run against depth: of its equilibrium layer, and of
the same layer unrolled, plain and with checkpointing. Points that need more memory than the machine
has are skipped with a message. Each point is written to memory.json in the run folder as soon as it
is measured, where `equilibria report` finds it; the same command continues after an interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from equilibria import files
from equilibria.run import evaluation, memory, run
from equilibria.run import processes as devices
from equilibria.run.cli.output import Output
from equilibria.run.cli.parser import Parser
from equilibria.run.config import as_chosen
from equilibria.run.data import storage
from equilibria.words import plural


def main(argv: Sequence[str]) -> None:
    """Run `equilibria memory` with the words `argv`."""
    parser = Parser("memory", __doc__)
    parser.add_argument("run", type=str, help="run folder, for example runs/digits")
    parser.add_data_dir()
    parser.add_device()
    arguments = parser.parse_args(list(argv))
    devices.device(arguments.device)  # is it there? Before any data are read
    run.Folder(Path(arguments.run)).check_writable()
    loaded = run.load(arguments.run, data_dir=arguments.data_dir)
    console = Output(quiet=arguments.quiet)
    with console.status("Measuring the memory of a training step ..."):
        points = measure(loaded, console, device=arguments.device)
    if loaded.recipe.reuse and loaded.metrics and "reuse" in loaded.metrics[-1]:
        kept = loaded.metrics[-1]["reuse"]["bytes"]
        console.print(
            f"Beside these, training keeps the states of all samples from step to step: "
            f"{kept / 2**20:,.1f} MiB",
            markup=False,
            highlight=False,
        )
    path = run.Folder(loaded.folder).memory
    count = plural(len(points), "point")
    console.finish(f"Wrote {count} to {path}. Next: equilibria report {loaded.folder}", path)


def measure(
    loaded: run.Run, console: Console, *, device: str | None = None
) -> list[memory.MemoryPoint]:
    """Write memory.json, point by point; existing points of the same device are kept.

    Args:
        loaded: the run, with its data.
        console: where to report what is skipped.
        device: to measure on; None for a GPU where there is one.

    Returns:
        All points.
    """
    path, task = run.Folder(loaded.folder).memory, loaded.data
    where = evaluation.accelerator("float32", device).device
    model = loaded.model.to(where)
    order = [each.key for each in memory.settings(model)]
    known = [p for p in _points(path) if p.key in order and p.device == where.type]
    with as_chosen():
        batch = task.feed(loaded.recipe.rows, loaded.recipe.seed).batch(0)
    found = memory.measure_within(
        model,
        task,
        batch,
        known=known,
        skipped=lambda reason: console.print(reason, style="yellow", markup=False),
    )
    for point in found:
        known = sorted([*known, point], key=lambda each: order.index(each.key))
        files.write_json(path, [asdict(each) for each in known])
    return known


def _points(path: Path) -> list[memory.MemoryPoint]:
    """The points in memory.json; empty if there is none, or one of another version."""
    try:
        points = storage.read(path, list[memory.MemoryPoint])
        return [memory.MemoryPoint(**point) for point in points]
    except (OSError, ValueError, TypeError):
        return []
