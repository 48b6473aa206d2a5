"""Train a recipe of the papers' size in calls of a few minutes, each of which goes on where the
last one ended.

``python benchmarks/gpu/language.py lm-ptb-trellisnet-paper --budget 9`` trains for nine minutes,
saves and says how far it is; the same line goes on. At the end results/gpu-<recipe>.json and .svg
have perplexity, time, evaluations and tokens a second of each epoch, and of the test text.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from equilibria.bench.record import Table
from equilibria.experiments.case import SHARED, Case, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page
from equilibria.experiments.runner import execute, publish
from equilibria.experiments.training import FOLDER, training
from equilibria.train import recipe as recipes
from equilibria.train.run import Folder

ROOT = Path(__file__).parents[2]


def experiment(name: str, options: Sequence[str], minutes: float) -> Experiment:
    """The training of one recipe as an experiment of one case."""
    key = Path(name).stem
    recipe = recipes.load(name, options)

    def cases(_: str) -> list[Case]:
        return [training(key, recipe, minutes)]

    return Experiment(
        name=f"gpu/{key}",
        paper="Bai et al. 2019 and 2021",
        subject=key,
        description=recipe.description,
        cases=cases,
        show=show,
    )


def show(done: Results) -> Page:
    """Perplexity, time and evaluations of each epoch, and of the test text at the end."""
    rows: list[list[Any]] = []
    series: list[Series] = []
    for key, found in done.items():
        value = found.value
        minutes = 0.0
        times: list[float] = []
        for epoch in value["metrics"]:
            minutes += epoch["seconds"] / 60
            times.append(minutes)
            rows.append([key, epoch["epoch"], minutes, *_figures(epoch, "valid")])
        if value["evaluation"] is not None:
            whole = {"test": value["evaluation"]}
            rows.append([key, "test", minutes, *_figures(whole, "test")])
        perplexity = [epoch["valid"]["perplexity"] for epoch in value["metrics"]]
        series.append(Series(label=key, x=times, y=perplexity, style="marked"))
    return Page(
        [
            Table(
                title="Training at the papers' size",
                columns=[
                    *("recipe", "epoch", "minutes", "perplexity", "evaluations, mean"),
                    *("converged, %", "tokens a second"),
                ],
                rows=rows,
                note="Perplexity of the validation text after each epoch, and of the test text at "
                "the end; minutes of training steps alone.",
            )
        ],
        [
            Panel(
                title="validation perplexity",
                x="minutes",
                y="perplexity",
                series=series,
                log_y=True,
            )
        ],
    )


def _figures(epoch: dict[str, Any], split: str) -> list[Any]:
    forward = epoch[split]["forward"]
    evals, status = forward["evals"], forward["status"]
    return [
        epoch[split]["perplexity"],
        None if evals is None else evals["mean"],
        None if status is None else 100 * status["CONVERGED"],
        epoch["tokens"] / epoch["seconds"] if "seconds" in epoch else None,
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="its name or a file, such as lm-ptb-trellisnet-paper")
    parser.add_argument("--budget", type=float, default=9.0, help="minutes of this call (9)")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder for the results")
    parser.add_argument("--data-dir", type=Path, help="folder to look for data sets in")
    args, options = parser.parse_known_args(argv)
    words = sys.argv[1:] if argv is None else list(argv)
    command = " ".join(["python benchmarks/gpu/language.py", *words])
    console = Console()
    one = experiment(args.recipe, options, args.budget)
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
            console.print(
                f"epoch {last['epoch']}, step {last['step']}: validation perplexity "
                f"{last['valid']['perplexity']:.2f}"
            )
        for key, reason in outcome.missing.items():
            console.print(f"{key}: {reason}", markup=False)
        if outcome.failed:
            sys.exit(1)
        console.print("The same command goes on.")
        return
    _, paths = publish(one, outcome, args.out, command)
    console.print(f"Written to {' and '.join(map(str, paths))}.", markup=False)


if __name__ == "__main__":
    main()
