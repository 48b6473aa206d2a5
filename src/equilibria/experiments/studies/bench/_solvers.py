"""What the rows of the benchmark of forward solvers come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from equilibria.experiments.data import Data, Frame
from equilibria.experiments.studies.bench._tables import filled, geometric

__all__ = ["SAME", "compared", "summary", "with_total"]

SAME = ("Picard", "Anderson", "Broyden")
"""Methods that torchdeq has too."""

OF_PROBLEM = ("kind", "state_bytes", "f_ms")
INTEGERS = ("samples", "reached", "wrong", "evals_max", "calls", "f_samples", "reads")
FIGURES = ("family", "method", "error", "residual", "evals", "ops", "ops_mean", "bytes", "ms")

OURS, DEFAULT = "family == 'equilibria'", "solver == 'default'"
CONV, HARD = (f"{DEFAULT} and kind == '{kind}'" for kind in ("conv", "hard"))
DENSE = f"{DEFAULT} and kind in ('linear', 'tanh', 'attention')"  # not hard: f runs on fewer there
BUSY = f"{DENSE} and f_ms >= 1"
SMALL = f"{DENSE} and 0.1 <= f_ms <= 0.4 and state_bytes <= 6e5"
SUMMARY = {
    **{f"{n}: times as fast as torchdeq's": (f"solver == '{n}'", "same") for n in SAME},
    "default: times as fast as torchdeq's best, by hindsight": (DEFAULT, "best"),
    "the same, if nothing but f took time": (DEFAULT, "bound"),
    "overhead of the default, f >= 1 ms, matrix products and attention": (BUSY, "overhead"),
    "overhead of the default, f 0.1 to 0.4 ms, state <= 0.6 MB": (SMALL, "overhead"),
    "overhead of the default beside torchdeq's Anderson, convolutions": (CONV, "beside"),
    **{f"{n}: operations an evaluation": (f"solver == '{n}'", "ops") for n in SAME},
    "hard: f-samples / evaluations of the samples, default": (HARD, "waste"),
    "samples converged / the best peer's, default": (DEFAULT, "share"),
    "samples converged / the best peer's, best of ours": (OURS, "share"),
}
"""What is shown -> of which rows, and which figure: its maximum where a problem has several."""

HIGH = ("same", "best", "bound", "share")
"""Figures of which a high one is good."""


def compared(data: Data) -> Frame:
    """Return all rows, beside f alone, torchdeq's same method, and its fastest by hindsight."""
    rows = filled(data, "solver", (*FIGURES, *INTEGERS), OF_PROBLEM)
    rows = rows.astype(dict.fromkeys(INTEGERS, "Int64"))
    problem, ms, ours = rows["problem"], rows["ms"], rows["family"] == "equilibria"
    f_ms = rows[["calls", "evals_max"]].max(axis=1) * rows["f_ms"]
    rows["overhead"] = ms / f_ms
    timed = rows[(rows["family"] == "torchdeq") & ms.notna()]
    same = timed.set_index(["problem", "method"])["ms"].to_dict()
    its = [same.get(key) for key in zip(problem, rows["method"], strict=True)]
    rows["same"] = pd.Series(its, rows.index, dtype=float).where(ours) / ms
    best = timed.sort_values("ms").drop_duplicates("problem").set_index("problem")
    rows["fastest"] = problem.map(best["solver"].astype(str).str.removeprefix("torchdeq "))
    rows["best"], rows["bound"] = problem.map(best["ms"]) / ms, problem.map(best["ms"]) / f_ms
    anderson = rows[rows["solver"] == "torchdeq anderson"].set_index("problem")["overhead"]
    rows["beside"] = rows["overhead"] / problem.map(anderson)
    rows["waste"] = rows["f_samples"] / (rows["evals"] * rows["samples"])
    rows["share"] = rows["reached"] / problem.map(rows[~ours].groupby("problem")["reached"].max())
    rows["solved"] = rows["error"].isna() & (rows["reached"] == rows["samples"])
    rows["reads_each"] = rows["reads"] / rows["evals_max"]
    rows["states"] = rows["bytes"] / rows["state_bytes"]
    rows["said"] = [_said(row) for row in rows.to_dict("records")]
    return rows


def _said(row: dict[str, Any]) -> str:
    """What a reader is told of an answer that is not right."""
    share = 100 * row["reached"] / row["samples"]
    said = "" if row["solved"] else f"{share:.0f} % reached the tolerance"
    said = row["error"] if isinstance(row["error"], str) else said
    return f"{said}; {row['wrong']} wrongly called converged" if row["wrong"] else said


def with_total(data: Data) -> Frame:
    """Return the rows, and for each solver one of all problems, where `reached` is a share."""
    rows = compared(data).astype({"samples": object, "reached": object})
    total = rows.groupby("solver", sort=False)[["reached", "samples"]].sum().reset_index()
    shares = 100 * total["reached"].astype(float) / total["samples"].astype(float)
    return pd.concat(
        [rows, total.assign(problem="all", samples="", reached=shares.map("{:.1f} %".format))]
    )


def summary(data: Data) -> Iterable[Sequence[Any]]:
    """Return geometric means over the problems, and the worst of them."""
    rows = compared(data)
    for what, (query, column) in SUMMARY.items():
        found = rows.query(query).groupby("problem", sort=False)[[column]].max().astype(float)
        found = found[found[column] > 0]
        worst = "idxmin" if column in HIGH else "idxmax"
        at = found[column].agg(worst) if len(found) else ""
        yield what, len(found), geometric(column)(found), found[column].get(at), at
