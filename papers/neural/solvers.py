"""Savings, loss of quality and cost of a learned initial guess and mixing weights.

MDEQ: the network of jacobian/tables without the penalty; MNIST: recipe mnist; Penn Treebank: recipe
lm-ptb. Solvers are trained as by equilibria distill, with its defaults, on 24 batches of training
data, and evaluated on the whole test split. Best classical: the best of Picard, Anderson with
periods 1 and 3, and Broyden in hindsight, for each seed and number of evaluations. Solves return
the best evaluated state, which after 1 evaluation is the initial guess.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Lines, Table
from papers.neural import common, solver_tables
from papers.published import BAI_2022, read_published

SHOWN = (1, 2, 3, 4, 5, 7, 10, 15)


def points(scale: Scale) -> list[Point]:
    return [
        Point(
            {"subject": subject, "seed": seed},
            [common.overhead, common.residuals, common.budgets, common.never_worse],
            {"run": common.training_of(subject, scale, seed)},
            minutes=10,
        )
        for subject in common.SUBJECTS
        for seed in common.SEEDS[subject]
    ]


def _list_published() -> Iterable[Sequence[Any]]:
    for row in read_published(BAI_2022, "Table 6.1"):
        yield [row["row"], row["size"], row["perplexity"]]


STUDY = Study(
    item="Figures 6.5 and 6.6a, Table 6.1",
    title="Learned solvers",
    points=points,
    views=[
        Table(
            title="Figure 6.5: quality lost by stopping early, test split",
            columns=["network", "seeds", "solver", *(f"after {n}" for n in SHOWN)],
            rows=lambda data: solver_tables.list_losses(data, SHOWN),
            note="In percentage points of accuracy, and in perplexity for Penn Treebank, relative "
            "to full solves by the recipe's solver; negative values are gains. Samples that have "
            "converged to the recipe's tolerance stop earlier.",
        ),
        Table(
            title="Figure 6.5: fewest evaluations and shortest time without loss",
            columns=[
                *("network", "seed", "fastest classical", "fewest evaluations", "ms per batch"),
                *("fastest learned", "fewest evaluations", "ms per batch"),
                *("evaluations, learned / classical", "time, classical / learned"),
            ],
            rows=solver_tables.equal,
            note="Without loss: at most 0.1 percentage points of accuracy, or 0.5 of perplexity. "
            "Times are for a batch of the test split, with each solver limited to as many "
            "evaluations as it needs, interleaved.",
        ),
        Table(
            title="Figure 6.6a: relative residual, geometric mean over test samples",
            columns=[
                *("network", "seeds", "solver"),
                *(
                    f"{words} {n}"
                    for n in (3, common.HORIZON, 2 * common.HORIZON)
                    for words in ("after", "relative to the best classical, after")
                ),
            ],
            rows=solver_tables.ratios,
            note=f"The running minimum, at a tolerance of 0. K is {common.HORIZON}.",
        ),
        Lines(
            "evals",
            "residual",
            by=["solver"],
            where={"subject": "MDEQ"},
            label=lambda name: solver_tables.WORDS.get(name, name),
        ).chart(
            "Figure 6.6a: MDEQ, relative residual", "evaluations", "relative residual", log_y=True
        ),
        Lines(
            "limit",
            "lost",
            by=["solver"],
            where={"subject": "MDEQ", "limit": [n for n in common.LIMITS if n > 2]},
            label=lambda name: solver_tables.WORDS.get(name, name),
        ).chart("Figure 6.5b: MDEQ, accuracy lost", "evaluations", "points", whole_x=True),
        Table(
            title="Figure 6.5d: size and training time",
            columns=[
                *("network", "seed", "parameters without embeddings", "of the solver", "share, %"),
                *("training the solver, s", "of the network's training, %"),
                *("evaluations, best classical", "best learned"),
                *("outcome", "mixer", "time of a step with it, relative to Anderson"),
            ],
            rows=solver_tables.costs,
            note="Evaluations to the recipe's tolerance, on six held-out batches.",
        ),
        Table(
            title="Safeguards: all test samples, the solver that distil selects",
            columns=[
                *("network", "tolerance", "solves", "converged, Anderson, %", "learned, %"),
                *("evaluations, Anderson", "learned", "over 2 more than Anderson, %"),
            ],
            rows=solver_tables.safety,
        ),
        Table(
            title="Table 6.1: the initial guess alone",
            columns=["network", "metric", "full solves", "initial guess alone"],
            rows=solver_tables.ends,
        ),
        Table(
            title="Table 6.1, published: WikiText-103",
            columns=["model", "size", "test perplexity"],
            rows=lambda data: _list_published(),
        ),
    ],
)
