"""What `equilibria reproduce` lists: all studies, and the rows that are stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from equilibria.run.cli.errors import explain
from equilibria.run.cli.output import names_table
from equilibria.run.studies import catalogue
from equilibria.words import listed

if TYPE_CHECKING:
    from equilibria.run.studies.study import Point, Scale


def studies(console: Console, command: str, names: Sequence[str], scale: Scale) -> None:
    """Print all studies: how long they take, what they show, and of which paper."""
    grid = names_table(console, "study", "minutes", "what it shows", right=("minutes",))
    every: dict[int, float] = {}
    for name in names:
        try:
            study = catalogue.find(name)
            points = study.points(scale)
        except Exception as error:  # of one file, which may be in the middle of an edit
            grid.add_row(name, "–", f"cannot be run: {explain(command, error)}")
            continue
        trainings = {hash(repr(each)): each for p in points for each in p.runs.values()}
        own = sum(point.minutes for point in points)
        minutes = own + sum(each.minutes for each in trainings.values())
        every |= {key: each.minutes for key, each in trainings.items()} | {hash(name): own}
        paper = f" ({study.paper}, {study.item})" if study.paper else ""
        grid.add_row(name, f"{minutes:.0f}", f"{study.description}{paper}")
    console.print(grid)
    where = "one GPU" if scale == "gpu" else "two CPU cores"
    console.print(
        f"Estimates for {where}; {sum(every.values()):.0f} minutes for all of them, as a training "
        f"that several studies share is run once.\nRun one with: equilibria {command} NAME "
        "--budget MINUTES",
        soft_wrap=True,
        highlight=False,
    )


def stale(
    names: Sequence[str],
    out: Path,
    scale: Scale,
    console: Console,
    identity: Callable[[Point, str], str | None],
) -> None:
    """Print, for each study, how many points are older than the last change below it.

    Args:
        names: of the studies.
        out: folder of the results.
        scale: size of the recipes.
        console: to print on.
        identity: point and recorded identity -> its identity now, None where it is not known.
    """
    from equilibria.run.studies.runner import check, collect
    from equilibria.run.studies.stale import last_change, verdicts

    counted = ("points", "measured", "current", "stale", "unknown")
    grid = names_table(console, "study", *counted, "code changed", "stale points", right=counted)
    for name in names:
        study, source = catalogue.find(name), catalogue.source_of(name)
        path = out / f"{catalogue.rows_of(name)}.csv"
        points, known = check(study, scale), collect(study, path, scale).points
        done = known[known["done"]]
        identities = [identity(points[n], known["_identity"][n]) for n in done.index]
        found = verdicts(done, source, identities) if len(done) else []
        stale = [
            points[n].label for n, each in zip(done.index, found, strict=True) if each == "stale"
        ]
        counts = [len(points), len(done), *map(found.count, ("current", "stale", "unknown"))]
        grid.add_row(
            name, *map(str, counts), (last_change(source) or "unknown")[:10], listed(stale, 6)
        )
    console.print(grid)
