"""Figures 6.5 and 6.6a and Table 6.1: learned solvers beside classical ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.experiments.published import BAI_2022, published
from equilibria.experiments.studies.neural import _tables
from equilibria.experiments.studies.neural._measures import (
    HORIZON,
    LIMITS,
    budgets,
    never_worse,
    overhead,
    residuals,
)
from equilibria.experiments.studies.neural._subjects import SEEDS, SUBJECTS, training_of
from equilibria.experiments.study import Point, Scale, Study
from equilibria.experiments.views import Chart, Lines, Table

SHOWN = (1, 2, 3, 4, 5, 7, 10, 15)


def points(scale: Scale) -> list[Point]:
    return [
        Point(
            factors={"subject": subject, "seed": seed},
            measures=[overhead, residuals, budgets, never_worse],
            runs={"run": training_of(subject, scale, seed)},
            minutes=10,
        )
        for subject in SUBJECTS
        for seed in SEEDS[subject]
    ]


def _published() -> Iterable[Sequence[Any]]:
    for row in published(BAI_2022, "Table 6.1"):
        yield [row["row"], row["size"], row["perplexity"]]


STUDY = Study(
    paper=BAI_2022,
    item="Figures 6.5 and 6.6a, Table 6.1",
    title="Learned solvers",
    description="What a learned start and learned mixing weights save, lose and cost.",
    note="MDEQ: the network of jacobian/tables without the penalty; MNIST: recipe mnist; Penn "
    "Treebank: recipe lm-ptb. The solvers are learned as by equilibria distil, with its defaults, "
    "on 24 batches of training data; all of the test split is read. Best classical: for each "
    "seed and number of evaluations the best of Picard, Anderson of periods 1 and 3, and "
    "Broyden, by hindsight. Solves return the best state that was evaluated: after 1 evaluation "
    "that is where they begin.",
    points=points,
    views=[
        Table(
            title="Figure 6.5: what is lost by stopping, test split",
            columns=["network", "seeds", "solver", *(f"after {n}" for n in SHOWN)],
            rows=lambda data: _tables.lost(data, SHOWN),
            note="Points of accuracy, and perplexity of Penn Treebank, against full solves by the "
            "recipe's solver; below 0 is a gain. In the recipe's tolerance: samples that have "
            "converged stop earlier.",
        ),
        Table(
            title="Figure 6.5: nothing lost, fewest evaluations and least time",
            columns=[
                *("network", "seed", "fastest classical", "fewest evaluations", "ms a batch"),
                *("fastest learned", "fewest evaluations", "ms a batch"),
                *("evaluations, learned over classical", "time, classical over learned"),
            ],
            rows=_tables.equal,
            note="Lost at most 0.1 points of accuracy, or 0.5 of perplexity. A batch of the test "
            "split, by each solver stopped after as many evaluations as it needs, interleaved.",
        ),
        Table(
            title="Figure 6.6a: relative residual, geometric mean over test samples",
            columns=[
                *("network", "seeds", "solver"),
                *(
                    f"{words} {n}"
                    for n in (3, HORIZON, 2 * HORIZON)
                    for words in ("after", "over the best classical, after")
                ),
            ],
            rows=_tables.ratios,
            note=f"The least so far, at a tolerance of 0. K is {HORIZON}.",
        ),
        Chart(
            title="Figure 6.6a: MDEQ, relative residual",
            x="evaluations",
            y="relative residual",
            marks=Lines(
                x="evals",
                y="residual",
                by=["solver"],
                where={"subject": "MDEQ"},
                label=lambda name: _tables.WORDS.get(name, name),
            ),
            log_y=True,
        ),
        Chart(
            title="Figure 6.5b: MDEQ, accuracy lost",
            x="evaluations",
            y="points",
            marks=Lines(
                x="limit",
                y="lost",
                by=["solver"],
                where={"subject": "MDEQ", "limit": [n for n in LIMITS if n > 2]},
                label=lambda name: _tables.WORDS.get(name, name),
            ),
            whole_x=True,
        ),
        Table(
            title="Figure 6.5d: size and time of learning",
            columns=[
                *("network", "seed", "parameters without embeddings", "learned", "share, %"),
                *("seconds", "of training, %", "evaluations, best classical", "best learned"),
                *("distil says", "mixer", "a step with it, times Anderson's"),
            ],
            rows=_tables.costs,
            note="Evaluations to the recipe's tolerance on six batches that were not learned from.",
        ),
        Table(
            title="Never worse: all test samples, the solver that distil would switch on",
            columns=[
                *("network", "tolerance", "solves", "converged, Anderson, %", "learned, %"),
                *("evaluations, Anderson", "learned", "more than 2 above Anderson's, %"),
            ],
            rows=_tables.safety,
        ),
        Table(
            title="Table 6.1: the start alone",
            columns=["network", "metric", "full solves", "start alone"],
            rows=_tables.ends,
        ),
        Table(
            title="Table 6.1, published: WikiText-103",
            columns=["model", "size", "test perplexity"],
            rows=lambda data: _published(),
        ),
    ],
)
