"""What the rows of the benchmarks come to beside those of torchdeq, and charts of them."""

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import torch

from equilibria.run import plugins
from equilibria.run.bench import cells, gradients
from equilibria.run.bench.contestants import require_peers
from equilibria.run.bench.methods import Method, of_own
from equilibria.run.bench.solvers import Row
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Context, Point, Scale, Study
from equilibria.run.studies.views import Cell, Chart, Derived, Lines, Pivot, of, ratio
from equilibria.run.studies.views.tables import Column
from papers.bench.cells import layer

PEERS = ("torchdeq", "scipy")


def _fill(data: Data, index: str, columns: Sequence[str], of_problem: Sequence[str]) -> Frame:
    """Return the row of each contestant on each problem, with what its tables need.

    Args:
        data: of the study.
        index: column that names a contestant.
        columns: that there are in any case, be it without a figure.
        of_problem: those that stand in a problem's first row, and here in all of its rows.

    Returns:
        `problem` is the whole point in words; `place` and `rank` number problem and contestant;
        `states` is the memory in states.
    """
    rows = data.series(index)
    names = [*data.factors, index, "family", *columns, *of_problem]
    rows = rows.reindex(columns=list(dict.fromkeys([*names, *rows])))
    rows["problem"] = rows[data.factors].astype(str).agg(", ".join, axis=1) if len(rows) else ""
    rows["place"], rows["rank"] = (rows[name].factorize()[0] for name in ("problem", index))
    for name in of_problem:
        rows[name] = rows.groupby("problem", sort=False)[name].transform("first")
    rows["states"] = rows["bytes"] / rows["state_bytes"]
    return rows


def _add_fastest(rows: Frame, index: str, peers: Frame) -> Frame:
    """Add torchdeq's fastest on each problem, its figures, how many times as fast a row is, words.

    Its figures are `best_` and their names, where it has them.
    """
    best = peers.sort_values("ms").drop_duplicates("problem").set_index("problem")
    for name in ("calls", "error", "rtol"):
        rows[f"best_{name}"] = rows["problem"].map(best[name]) if name in best else None
    rows["fastest"] = rows["problem"].map(best[index].astype(str).str.removeprefix("torchdeq "))
    rows["best_ms"] = rows["problem"].map(best["ms"])
    rows["best"] = rows["best_ms"] / rows["ms"]
    rows["said"] = [_explain(row) for row in rows.to_dict("records")]
    return rows


def _explain(row: dict[str, Any]) -> str:
    """What a reader is told of an answer that is not right."""
    for name in ("failure", "error"):
        if isinstance(row.get(name), str):
            return row[name]
    words: list[str] = []
    if row["reached"] < row["samples"]:
        share = f"{100 * row['reached'] / row['samples']:.0f} % reached the tolerance"
        words.append(f"forward: {share}" if "exact" in row else share)
    if row.get("wrong"):
        words.append(f"{row['wrong']} wrongly called converged")
    if row.get("failed"):
        words.append(f"backward: says that {row['failed']:.0f} failed")
    if row.get("exact") and not words and not row["accurate"]:
        words.append("called exact, and is not")
    return "; ".join(words)


def dots(*marks: Mapping[str, Any], names: str, **options: Any) -> Chart:
    """A chart of points in a line for each level of a column, whose names stand at the left.

    Args:
        marks: options of `Lines`, x and y among them.
        names: column whose levels are named.
        options: of the chart.
    """
    return Chart(
        y="",
        marks=[Lines(**{"merge": None, "style": "points", **mark}) for mark in marks],
        names_y=lambda data: data.rows[names].unique().tolist(),
        **options,
    )


def geometric(column: str) -> Column:
    """exp of the mean logarithm over the rows that have the figure."""

    def cell(rows: Frame) -> Cell:
        known = rows[column].dropna().tolist()
        return math.exp(sum(map(math.log, known)) / len(known)) if known else None

    return cell


def scientific(column: str) -> Column:
    """A small number with two digits."""
    return lambda rows: (
        None if rows[column].isna().all() else f"{rows[column].dropna().iloc[0]:.1e}"
    )


# --- a class of a user's own ----------------------------------------------------------------------


def with_own(
    study: Study,
    path: str,
    bases: tuple[type, ...],
    default: Mapping[str, str],
    rows: Callable[[Data], Frame],
    figures: Mapping[str, Callable[..., Column]],
) -> Study:
    """Return a study with a class of a user's own among its contestants, and a table of it beside
    our default.

    Args:
        study: whose measures take the class as `own`; then peers that are not installed are absent.
        path, bases: of the class, as `plugins.build` takes them.
        default: the column with the names of contestants, and our default's.
        rows: derives the rows of the table.
        figures: of the table, heading -> column of a contestant, the last one that of its time.
    """
    cls = type(plugins.build(path, bases))
    joins: dict[str, Any] = {"own": path}
    settings = {
        "code": inspect.getsource(sys.modules[cls.__module__]),
        "peers": [name for name in PEERS if importlib.util.find_spec(name)],
    }

    def points(scale: Scale) -> list[Point]:
        return [
            replace(
                point,
                measures=[partial(each, **joins) for each in point.measures],
                settings={**point.settings, **settings},
            )
            for point in study.points(scale)
        ]

    own: dict[str, Any] = dict.fromkeys(default, path)
    (name,) = default.values()
    *_, time = figures.values()
    beside = Pivot(
        title=f"{path} beside {name}",
        index={"problem": "problem"},
        each=next(iter(default)),
        values={
            **{head: figure(**own) for head, figure in figures.items()},
            **{f"{name}: {head}": figure(**default) for head, figure in figures.items()},
            "times as fast": ratio(time(**default, said=""), time(**own, said="")),
            "": of("said", **own),
        },
        note="Times as fast: where both are right, or do not promise to be.",
    )
    views = [*study.views, Derived(rows, beside)]
    return replace(study, points=points, peers=settings["peers"], views=views)


# --- forward solvers ------------------------------------------------------------------------------

SAME = ("Picard", "Anderson", "Broyden")
"""Methods that torchdeq has too."""

INTEGERS = ("samples", "reached", "wrong", "evals_max", "calls", "f_samples", "reads")
FIGURES = ("method", "error", "residual", "evals", "ops", "ops_mean", "bytes", "ms", *INTEGERS)

OURS, DEFAULT, PLAIN = "family == 'equilibria'", "solver == 'default'", "solver == 'Picard'"
CONV, HARD = (f"{DEFAULT} and kind == '{kind}'" for kind in ("conv", "hard"))
DENSE = "kind in ('linear', 'tanh', 'attention')"  # not hard: f runs on fewer there
BUSY = f"{DENSE} and f_ms >= 1"
SMALL = f"{DENSE} and 0.1 <= f_ms <= 0.4 and state_bytes <= 6e5"
TINY = "problem == 'tanh-16x32'"
SIZES = {"< 0.1 ms": "f_ms < 0.1", "0.1 to 1 ms": "0.1 <= f_ms < 1", ">= 1 ms": "f_ms >= 1"}
BY_SIZE = {size: f"{DEFAULT} and kind == 'layer' and {query}" for size, query in SIZES.items()}
BOTH = {"plain": PLAIN, "default": DEFAULT}
SUMMARY = {
    **{f"{n}: times as fast as torchdeq's": (f"solver == '{n}'", "same") for n in SAME},
    **{
        f"layers, f {size}: {what}": (query, column)
        for size, query in BY_SIZE.items()
        for what, column in (
            ("default times as fast as torchdeq's best, by hindsight", "best"),
            ("evaluations of torchdeq's best / the default's", "fewer"),
        )
    },
    "default, if nothing but f took time: times as fast as torchdeq's best": (DEFAULT, "bound"),
    **{
        f"overhead, {n}, {size}": (f"{query} and {rows}", "overhead")
        for size, rows in (
            ("f >= 1 ms, matrix products and attention", BUSY),
            ("f 0.1 to 0.4 ms, state <= 0.6 MB", SMALL),
        )
        for n, query in BOTH.items()
    },
    **{
        f"microseconds an evaluation beyond f, 32 samples of 16, {n}": (
            f"{query} and {TINY}",
            "beyond",
        )
        for n, query in BOTH.items()
    },
    "overhead of the default beside torchdeq's Anderson, convolutions": (CONV, "beside"),
    **{f"{n}: operations an evaluation": (f"solver == '{n}'", "ops") for n in SAME},
    "hard: f-samples / evaluations of the samples, default": (HARD, "waste"),
    "samples converged / the best peer's, default": (DEFAULT, "share"),
    "samples converged / the best peer's, best of ours": (OURS, "share"),
}
"""What is shown -> of which rows, and which figure: its maximum where a problem has several."""


def solves(data: Data) -> Frame:
    """Return all rows, beside f alone, torchdeq's same method, and its fastest by hindsight."""
    rows = _fill(data, "solver", FIGURES, ("kind", "state_bytes", "f_ms"))
    rows = rows.astype(dict.fromkeys(INTEGERS, "Int64"))
    problem, ms, ours = rows["problem"], rows["ms"], rows["family"] == "equilibria"
    evals = rows[["calls", "evals_max"]].max(axis=1)
    f_ms = evals * rows["f_ms"]
    rows["overhead"] = ms / f_ms
    rows["beyond"] = 1e3 * (ms - f_ms) / evals
    timed = rows[(rows["family"] == "torchdeq") & ms.notna()]
    same = timed.set_index(["problem", "method"])["ms"].to_dict()
    its = [same.get(key) for key in zip(problem, rows["method"], strict=True)]
    rows["same"] = pd.Series(its, rows.index, dtype=float).where(ours) / ms
    rows = _add_fastest(rows, "solver", timed)
    rows["bound"] = rows["best_ms"] / f_ms
    rows["fewer"] = rows["best_calls"] / evals
    anderson = rows[rows["solver"] == "torchdeq anderson"].set_index("problem")["overhead"]
    rows["beside"] = rows["overhead"] / problem.map(anderson)
    rows["waste"] = rows["f_samples"] / (rows["evals"] * rows["samples"])
    peers = rows[rows["family"].isin(PEERS)]
    rows["share"] = rows["reached"] / problem.map(peers.groupby("problem")["reached"].max())
    rows["solved"] = rows["error"].isna() & (rows["reached"] == rows["samples"])
    rows["reads_each"] = rows["reads"] / rows["evals_max"]
    return rows


def with_total(data: Data) -> Frame:
    """Return the solves, and for each solver one of all problems, where `reached` is a share."""
    rows = data.rows.astype({"samples": object, "reached": object})
    total = rows.groupby("solver", sort=False)[["reached", "samples"]].sum().reset_index()
    shares = 100 * total["reached"].astype(float) / total["samples"].astype(float)
    return pd.concat(
        [rows, total.assign(problem="all", samples="", reached=shares.map("{:.1f} %".format))]
    )


def summary(data: Data) -> Iterable[Sequence[Any]]:
    """Return geometric means and medians of the solves over the problems, and the worst."""
    for what, (query, column) in SUMMARY.items():
        found = data.rows.query(query).groupby("problem", sort=False)[[column]].max().astype(float)
        found = found[found[column] > 0]
        least = ("same", "best", "fewer", "bound", "share")
        worst = "idxmin" if column in least else "idxmax"
        at = found[column].agg(worst) if len(found) else ""
        middle = found[column].median() if len(found) else None
        yield what, len(found), geometric(column)(found), middle, found[column].get(at), at


# --- gradients ------------------------------------------------------------------------------------

ACCURATE = 20
"""Tolerances within which an error is what an exact gradient promises here."""


def points(
    cases: Mapping[str, Mapping[str, Any]], methods: Callable[[], Sequence[Method]], **options: Any
) -> list[Point]:
    """Return a point for each case, as `run.bench.cells.build` takes it, or the name of a `layer`.

    `options` are those of `run.bench.gradients.measure`.
    """
    return [
        Point(
            {"problem": name}, [partial(_step, case=case, methods=methods, **options)], minutes=0.7
        )
        for name, case in cases.items()
    ]


@identified_as("_rows._step")
def _step(
    context: Context,
    case: Mapping[str, Any],
    methods: Callable[[], Sequence[Method]],
    own: str | None = None,
    **options: Any,
) -> list[Row]:
    """A row for each method; see `run.bench.gradients.measure`."""
    if own is None:
        require_peers("torchdeq")
    name = str(context.factors["problem"])
    if "layer" in case:
        cell, x = (each := layer(case["layer"])).cell, each.x
        torch.manual_seed(3)
        made = cells.case_of(name, cell, x, torch.randn_like(x) / len(x), device=context.device)
    else:
        made = cells.build(name, device=context.device, dtype=torch.float32, **case)
    found = [*methods(), *([] if own is None else [of_own(own)])]
    return gradients.measure(made, found, **options)


def steps(data: Data, rtol: float) -> Frame:
    """Return all rows, and how fast they are beside torchdeq's fastest accurate one.

    Accurate is a gradient within the point's bound, or within `ACCURATE` tolerances.
    """
    figures = ("exact", "failure", "samples", "reached", "failed", "cosine", "error", "products")
    times = ("products_max", "forward_ms", "backward_ms", "ms", "bytes", "rtol")
    rows = _fill(data, "method", (*figures, *times), ("state_bytes", "radius", "bound"))
    rows = rows.astype({"products_max": "Int64", "exact": bool})
    bounded, limit = rows["bound"].notna(), rows["bound"].astype(float).fillna(ACCURATE * rtol)
    right = rows["failure"].isna() & (bounded | (rows["reached"] == rows["samples"]))
    rows["accurate"] = rows["exact"] & right & (rows["error"] <= limit)
    peers = (rows["family"] == "torchdeq") & rows["accurate"] & rows["ms"].notna()
    rows = _add_fastest(rows, "method", rows[peers])
    rows["speed"] = rows["best"].where(rows["accurate"])
    return rows
