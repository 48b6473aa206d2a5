"""Training in calls of a few minutes, each of which goes on where the last one ended."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from equilibria.experiments.case import SHARED, Case, Results
from equilibria.experiments.experiment import Experiment, Page
from equilibria.experiments.runner import execute, publish
from equilibria.experiments.training import FOLDER, training
from equilibria.train import recipe as recipes
from equilibria.train.run import Folder

ROOT = Path(__file__).parents[2]


def call(
    script: str,
    argv: Sequence[str] | None,
    *,
    description: str,
    example: str,
    paper: str,
    show: Callable[[Results], Page],
    said: Callable[[dict[str, Any]], str],
) -> None:
    """Train the recipe that the command line names, as far as its budget goes; publish at the end.

    Args:
        script: file name of the caller, for the record.
        argv: words of the command line; None for those of the process.
        description: of the command.
        example: a recipe.
        paper: authors and year.
        show: draws up the page of a finished training.
        said: an epoch's metrics -> what is said of it.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help=f"its name or a file, such as {example}")
    parser.add_argument("--budget", type=float, default=9.0, help="minutes of this call (9)")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder for the results")
    parser.add_argument("--data-dir", type=Path, help="folder to look for data sets in")
    args, options = parser.parse_known_args(argv)
    words = sys.argv[1:] if argv is None else list(argv)
    command = " ".join([f"python benchmarks/gpu/{script}", *words])
    console = Console()
    one = _experiment(args.recipe, options, args.budget, paper, show)
    outcome = execute(
        one,
        out=args.out,
        console=console,
        command=command,
        data_dir=args.data_dir,
        deadline=time.monotonic() + 60 * args.budget,
    )
    folder = Folder(args.out / SHARED / Path(args.recipe).stem / FOLDER)
    if not outcome.done:
        metrics = folder.read_metrics()
        if metrics:
            last = metrics[-1]
            console.print(f"epoch {last['epoch']}, step {last['step']}: {said(last)}")
        for key, reason in outcome.missing.items():
            console.print(f"{key}: {reason}", markup=False)
        if outcome.failed:
            sys.exit(1)
        console.print("The same command goes on.")
        return
    _, paths = publish(one, outcome, args.out, command)
    console.print(f"Written to {' and '.join(map(str, paths))}.", markup=False)


def _experiment(
    name: str,
    options: Sequence[str],
    minutes: float,
    paper: str,
    show: Callable[[Results], Page],
) -> Experiment:
    """The training of one recipe as an experiment of one case."""
    key = Path(name).stem
    recipe = recipes.load(name, options)

    def cases(_: str) -> list[Case]:
        return [training(key, recipe, minutes)]

    return Experiment(
        name=f"gpu/{key}",
        paper=paper,
        subject=key,
        description=recipe.description,
        cases=cases,
        show=show,
    )
