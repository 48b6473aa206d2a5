"""Several runs of one recipe that differ in their seed, and the mean of what they end with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from equilibria.metric import Metric
from equilibria.run.cli.output import Output, say
from equilibria.run.cli.status import DONE, UNHEALTHY
from equilibria.run.folder import Folder
from equilibria.run.recipe import Recipe
from equilibria.run.step import Diverged
from equilibria.words import percent

Train = Callable[[Recipe, Folder, bool], None]
"""Trains a recipe into a folder, which holds a run already where the last argument is true."""


def folder_of(folder: Folder, seed: int) -> Folder:
    """Return the run folder of a seed, inside that of all of them."""
    return Folder(folder.path / f"seed-{seed}")


def train_each(
    recipe: Recipe, folder: Folder, seeds: Sequence[int], resume: bool, train: Train, out: Output
) -> int:
    """Train a recipe with each seed, one after the other, and print their figures with the mean.

    Args:
        recipe: what to train; its own seed is replaced.
        folder: holds a run folder for each seed.
        seeds: the seeds, each once.
        resume: finish those that were begun.
        train: trains one of them.
        out: where to print.

    Returns:
        The exit status: `UNHEALTHY` if a run diverged.
    """
    if not resume:
        for seed in seeds:  # before hours have been spent on the first
            folder_of(folder, seed).check_free()
    ended: dict[int, dict[str, Any] | str] = {}
    for number, seed in enumerate(seeds, start=1):
        out.print(f"Seed {seed}, run {number} of {len(seeds)}", highlight=False, style="bold")
        own = folder_of(folder, seed)
        begun = resume and own.recipe.exists()
        try:
            train(own.read_recipe() if begun else replace(recipe, seed=seed), own, begun)
        except Diverged as error:
            ended[seed] = str(error)
            say(out, f"Seed {seed} diverged: {error}", "yellow")
            continue
        ended[seed] = own.read_evaluation()
    finished = {seed: result for seed, result in ended.items() if not isinstance(result, str)}
    if finished:
        info = folder_of(folder, next(iter(finished))).read_info()
        out.print(table(ended, [Metric.of(each) for each in info.get("metrics", [])]))
    out.finish(f"The runs are in {folder.path}", folder.path)
    return DONE if len(finished) == len(ended) else UNHEALTHY


def table(ended: Mapping[int, Mapping[str, Any] | str], metrics: Sequence[Metric]) -> Table:
    """Return the test figures of each seed, their mean and their standard deviation.

    Args:
        ended: by seed, what evaluation.json holds, or why the run has none.
        metrics: of the task.
    """
    results = {seed: result for seed, result in ended.items() if not isinstance(result, str)}
    shown = [each for each in metrics if all(each.name in result for result in results.values())]
    found = Table("seed", *(each.label for each in shown), "converged", title="test")
    for seed, result in ended.items():
        if isinstance(result, str):
            found.add_row(str(seed), *("diverged" for _ in shown), "")
        else:
            found.add_row(str(seed), *(e.format(result[e.name]) for e in shown), _share(result))
    if len(results) > 1:
        columns = [[result[each.name] for result in results.values()] for each in shown]
        for name, figure in (("mean", statistics.fmean), ("std", statistics.stdev)):
            values = zip(shown, columns, strict=True)
            found.add_row(name, *(each.format(figure(column)) for each, column in values), "")
    return found


def _share(result: Mapping[str, Any]) -> str:
    status = result["forward"]["status"]
    return "" if status is None else percent(status["CONVERGED"])
