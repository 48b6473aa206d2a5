"""Tables of learned solvers and the best classical one in hindsight."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.views import NOT_RUN
from papers.neural.common import FULL, HORIZON, SUBJECTS

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
