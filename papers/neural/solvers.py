"""Savings, loss of quality and cost of a learned initial guess and mixing weights.

MDEQ: the network of jacobian/tables without the penalty; MNIST: recipe mnist; Penn Treebank: recipe
lm-ptb. Solvers are trained as by equilibria distill, with its defaults, on 24 batches of training
data, and evaluated on the whole test split. Best classical: the best of Picard, Anderson with
periods 1 and 3, and Broyden in hindsight, for each seed and number of evaluations. Solves return
the best evaluated state, which after 1 evaluation is the initial guess.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import NOT_RUN, Lines, Table
from papers.neural import common
from papers.neural.common import FULL, HORIZON, SUBJECTS
from papers.published import BAI_2022, read_published

CLASSICAL = ("Picard", "Anderson", "Anderson(period=3)", "Broyden")
WORDS = {"Anderson(period=3)": "Anderson, period 3", "start": "start + Anderson"}
WORDS |= {"start, period 3": "start + Anderson, period 3", "start and mixer": "start + mixer"}


def _rows(data: Data, column: str) -> Iterator[tuple[str, Frame]]:
    """For each subject the rows that have a figure."""
    found = data.series(column)
    for subject in SUBJECTS:
        yield subject, found if found.empty else found[found["subject"] == subject]


def _best(rows: Frame, column: str) -> Frame:
    """The smallest figure of the classical solvers, for each seed and number of evaluations."""
    usual = rows[rows["solver"].isin(CLASSICAL)]
    at = "limit" if column == "lost" else "evals"
    return usual.groupby(["seed", at])[column].min()


def list_losses(data: Data, limits: Sequence[int]) -> Iterator[Sequence[Any]]:
    """Loss of quality when solves are stopped early, averaged over seeds."""
    for subject, rows in _rows(data, "lost"):
        if rows.empty:
            yield [subject, NOT_RUN]
            continue
        head = [subject, rows["seed"].nunique()]
        best = _best(rows, "lost")
        yield [*head, "best classical", *(best.xs(n, level="limit").mean() for n in limits)]
        for solver in rows["solver"].unique():
            own = rows[rows["solver"] == solver].groupby("limit")["lost"].mean()
            yield [*head, WORDS.get(solver, solver), *(own[n] for n in limits)]


def equal(data: Data) -> Iterator[Sequence[Any]]:
    """The fewest evaluations and the shortest time without loss."""
    for subject, rows in _rows(data, "enough"):
        if rows.empty:
            yield [subject, NOT_RUN]
            continue
        for seed, of_seed in rows.groupby("seed"):
            usual = of_seed[of_seed["solver"].isin(CLASSICAL)]
            learned = of_seed[~of_seed["solver"].isin(CLASSICAL)]
            if usual.empty or learned.empty:
                yield [subject, seed, "none without loss" if usual.empty else "only classical ones"]
                continue
            one = usual.loc[usual["read_ms"].idxmin()]
            two = learned.loc[learned["read_ms"].idxmin()]
            yield [
                *(subject, seed, _name(one["solver"]), usual["enough"].min(), one["read_ms"]),
                *(_name(two["solver"]), learned["enough"].min(), two["read_ms"]),
                learned["enough"].min() / usual["enough"].min(),
                one["read_ms"] / two["read_ms"],
            ]


def _name(solver: str) -> str:
    return WORDS.get(solver, solver)


def ratios(data: Data) -> Iterator[Sequence[Any]]:
    """Residuals after K and 2 K evaluations, relative to the best classical solver's."""
    for subject, rows in _rows(data, "residual"):
        if rows.empty:
            yield [subject, NOT_RUN]
            continue
        best = _best(rows, "residual")
        for solver in rows["solver"].unique():
            if solver in CLASSICAL:
                continue
            own = rows[rows["solver"] == solver].set_index(["seed", "evals"])["residual"]
            cells = []
            for evals in (3, HORIZON, 2 * HORIZON):
                after, usual = own.xs(evals, level="evals"), best.xs(evals, level="evals")
                logs = [math.log(after[seed] / usual[seed]) for seed in after.index]
                cells += [
                    math.exp(statistics.fmean(map(math.log, after))),
                    math.exp(statistics.fmean(logs)),
                ]
            yield [subject, rows["seed"].nunique(), _name(solver), *cells]


def costs(data: Data) -> Iterator[Sequence[Any]]:
    """Size of a learned solver, and time to train it."""
    for subject in SUBJECTS:
        found = data.points[(data.points["subject"] == subject) & data.points["done"]]
        if found.empty:
            yield [subject, NOT_RUN]
        for _, row in found.iterrows():
            steps = data.series("step_ratio", subject=subject, seed=row["seed"])["step_ratio"]
            end = "worth it" if row["worth"] else "not worth it"
            yield [
                *(subject, row["seed"], row["network_parameters"], row["learned_parameters"]),
                100 * row["learned_parameters"] / row["network_parameters"],
                *(row["distil_seconds"], 100 * row["distil_seconds"] / row["training_seconds"]),
                *(row["classical_evals"], row["learned_evals"], end),
                "kept" if row["mixes"] else "dropped",
                None if steps.empty else steps.iloc[0],
            ]


def safety(data: Data) -> Iterator[Sequence[Any]]:
    """Anderson and the learned solver on all test samples."""
    for subject, rows in _rows(data, "rtol"):
        if rows.empty:
            yield [subject, NOT_RUN]
            continue
        for rtol, some in rows.groupby("rtol", sort=False):
            yield [
                *(subject, rtol, int(some["samples"].sum())),
                *(100 * some["anderson_converged"].mean(), 100 * some["neural_converged"].mean()),
                *(some["anderson_evals"].mean(), some["neural_evals"].mean()),
                100 * some["slower"].mean(),
            ]


def ends(data: Data) -> Iterator[Sequence[Any]]:
    """Table 6.1: quality from the initial guess alone."""
    for subject, rows in _rows(data, "quality"):
        if rows.empty:
            yield [subject, NOT_RUN]
            continue
        quality = SUBJECTS[subject]
        first = rows[(rows["limit"] == 1) & (rows["solver"] == "start")]
        full = rows[rows["solver"] == FULL]
        means = [quality.scale * each["quality"].mean() for each in (full, first)]
        yield [subject, quality.metric, *means]


# --- The study ------------------------------------------------------------------------------------


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
            rows=lambda data: list_losses(data, SHOWN),
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
            rows=equal,
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
            rows=ratios,
            note=f"The running minimum, at a tolerance of 0. K is {common.HORIZON}.",
        ),
        Lines(
            "evals",
            "residual",
            by=["solver"],
            where={"subject": "MDEQ"},
            label=WORDS,
        ).chart(
            "Figure 6.6a: MDEQ, relative residual", "evaluations", "relative residual", log_y=True
        ),
        Lines(
            "limit",
            "lost",
            by=["solver"],
            where={"subject": "MDEQ", "limit": [n for n in common.LIMITS if n > 2]},
            label=WORDS,
        ).chart("Figure 6.5b: MDEQ, accuracy lost", "evaluations", "points", whole_x=True),
        Table(
            title="Figure 6.5d: size and training time",
            columns=[
                *("network", "seed", "parameters without embeddings", "of the solver", "share, %"),
                *("training the solver, s", "of the network's training, %"),
                *("evaluations, best classical", "best learned"),
                *("outcome", "mixer", "time of a step with it, relative to Anderson"),
            ],
            rows=costs,
            note="Evaluations to the recipe's tolerance, on six held-out batches.",
        ),
        Table(
            title="Safeguards: all test samples, the solver that distil selects",
            columns=[
                *("network", "tolerance", "solves", "converged, Anderson, %", "learned, %"),
                *("evaluations, Anderson", "learned", "over 2 more than Anderson, %"),
            ],
            rows=safety,
        ),
        Table(
            title="Table 6.1: the initial guess alone",
            columns=["network", "metric", "full solves", "initial guess alone"],
            rows=ends,
        ),
        Table(
            title="Table 6.1, published: WikiText-103",
            columns=["model", "size", "test perplexity"],
            rows=lambda data: _list_published(),
        ),
    ],
)
