"""What single measurements of solvers add up to: tables for a reader."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equilibria.bench.record import Cell, Table
from equilibria.bench.solvers import Measured, Report

__all__ = [
    "convergence",
    "costs",
    "details",
    "geometric_mean",
    "problem_table",
    "ratios",
    "summary",
]

SAME = {"Picard": 1.25, "Anderson": 2.0, "Broyden": 3.5}  # method: how much faster it is to be
BEST = 1.6
FASTER = "times as fast"


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm; NaN of nothing."""
    if not values:
        return math.nan
    return math.exp(sum(map(math.log, values)) / len(values))


def peer(report: Report, each: Measured) -> Measured | None:
    """torchdeq's solver of the same method, if it was timed."""
    found = [m for m in report.measured if m.family == "torchdeq" and m.method == each.method]
    return found[0] if found and found[0].ms is not None else None


def best_peer(report: Report) -> Measured | None:
    """torchdeq's fastest on this problem, by hindsight."""
    timed = [m for m in report.measured if m.family == "torchdeq" and m.ms is not None]
    return min(timed, key=lambda m: m.ms or 0.0) if timed else None


def ratio(each: Measured | None, other: Measured | None) -> float | None:
    """How many times as fast as another; None where one of them was not timed."""
    if each is None or other is None or each.ms is None or other.ms is None:
        return None
    return other.ms / each.ms


def _same(report: Report, name: str) -> float | None:
    each = report.get(name)
    return None if each is None else ratio(each, peer(report, each))


def _bound(report: Report) -> float | None:
    """What the default could be against torchdeq's best if it cost nothing but its evaluations."""
    each, other = report.get("default"), best_peer(report)
    if each is None or other is None or other.ms is None or not report.f_ms or not each.calls:
        return None
    return other.ms / (max(each.calls, each.evals_max or 0) * report.f_ms)


@dataclass(frozen=True)
class _Aim:
    """A line of the summary: a figure of each problem, and what it should be."""

    what: str
    figure: Callable[[Report], float | None]
    aim: float
    least: bool  # the figure should be at least `aim`; else at most
    worst: float | None = None  # and in no problem beyond this


def _overhead(report: Report, kinds: Sequence[str], fits: Callable[[Report], bool]) -> float | None:
    each = report.get("default")
    if each is None or report.kind not in kinds or not report.f_ms or not fits(report):
        return None
    return report.overhead(each)


def _beside_anderson(report: Report) -> float | None:
    each, other = report.get("default"), report.get("torchdeq anderson")
    if each is None or other is None or report.kind != "conv":
        return None
    own, its = report.overhead(each), report.overhead(other)
    return None if own is None or its is None else own / its


def _ops(name: str) -> Callable[[Report], float | None]:
    return lambda report: getattr(report.get(name), "ops", None)


def _converged(report: Report, names: Sequence[str] | None = None) -> float | None:
    """Samples that one of ours brought to the tolerance beside the most that a peer did."""
    ours = [
        m.reached
        for m in report.measured
        if m.family == "equilibria" and (names is None or m.solver in names)
    ]
    peers = [m.reached for m in report.measured if m.family != "equilibria"]
    return max(ours) / max(peers) if ours and peers and max(peers) else None


def _waste(report: Report) -> float | None:
    """Samples that f was given, beside those that still ran."""
    each = report.get("default")
    if report.kind != "hard" or each is None or not each.f_samples or not each.evals_mean:
        return None
    return each.f_samples / (each.evals_mean * each.samples)


DENSE = ("linear", "tanh", "attention")  # not hard: there f runs on fewer samples

AIMS = (
    *(
        _Aim(f"{name}: times as fast as torchdeq's", lambda r, n=name: _same(r, n), aim, True, 1.0)
        for name, aim in SAME.items()
    ),
    _Aim(
        "default: times as fast as torchdeq's best, by hindsight",
        lambda r: ratio(r.get("default"), best_peer(r)),
        BEST,
        True,
    ),
    _Aim("the same, if nothing but f took time", _bound, math.nan, True),
    _Aim(
        "overhead of the default, f >= 1 ms, matrix products and attention",
        lambda r: _overhead(r, DENSE, lambda r: (r.f_ms or 0) >= 1),
        1.15,
        False,
        1.15,
    ),
    _Aim(
        "overhead of the default, f 0.1 to 0.4 ms, state <= 0.6 MB",
        lambda r: _overhead(
            r, DENSE, lambda r: 0.1 <= (r.f_ms or 0) <= 0.4 and r.state_bytes <= 6e5
        ),
        2.0,
        False,
        2.0,
    ),
    _Aim(
        "overhead of the default beside torchdeq's Anderson, convolutions",
        _beside_anderson,
        0.8,
        False,
        0.8,
    ),
    _Aim("Picard: operations an evaluation", _ops("Picard"), 10, False, 10),
    _Aim("Anderson: operations an evaluation", _ops("Anderson"), 24, False, 24),
    _Aim("Broyden: operations an evaluation", _ops("Broyden"), 26, False, 26),
    _Aim("hard: f-samples / evaluations of the samples, default", _waste, 1.2, False, 1.2),
    _Aim(
        "samples converged / the best peer's, default",
        lambda r: _converged(r, ["default"]),
        1.0,
        True,
        1.0,
    ),
    _Aim("samples converged / the best peer's, best of ours", _converged, 1.0, True, 1.0),
)


def summary(reports: Sequence[Report]) -> Table:
    """Geometric means over the problems, beside what was aimed at."""
    rows: list[list[Cell]] = []
    for aim in AIMS:
        figures = {r.problem: f for r in reports if (f := aim.figure(r)) is not None and f > 0}
        if not figures:
            rows.append([aim.what, 0, None, None, "", _words(aim)])
            continue
        worst = (min if aim.least else max)(figures, key=lambda name: figures[name])
        mean = geometric_mean(list(figures.values()))
        rows.append([aim.what, len(figures), mean, figures[worst], worst, _words(aim)])
    return Table(
        title="Solvers: summary",
        columns=["what", "problems", "geometric mean", "worst", "where", "aim"],
        rows=rows,
        note="Over the problems in which all samples of both reached the tolerance. Overhead: "
        "time / (evaluations x time of f alone).",
    )


def _words(aim: _Aim) -> str:
    if math.isnan(aim.aim):
        return ""
    sign = "≥" if aim.least else "≤"
    return f"{sign} {aim.aim:g}" + ("" if aim.worst is None else f", worst {sign} {aim.worst:g}")


def _names(reports: Sequence[Report]) -> list[str]:
    return list(dict.fromkeys(m.solver for r in reports for m in r.measured))


def convergence(reports: Sequence[Report]) -> Table:
    """Who converges: samples that reached the tolerance, problem by problem."""
    names = _names(reports)
    rows: list[list[Cell]] = []
    total = dict.fromkeys(names, 0)
    samples = dict.fromkeys(names, 0)
    for report in reports:
        row: list[Cell] = [report.problem, report.batch]
        for name in names:
            each = report.get(name)
            row.append(None if each is None else each.reached)
            if each is not None:
                total[name] += each.reached
                samples[name] += each.samples
        rows.append(row)
    shares: list[Cell] = [f"{100 * total[n] / max(1, samples[n]):.1f} %" for n in names]
    rows.append(["all", "", *shares])
    return Table(
        title="Solvers: who converges",
        columns=["problem", "samples", *names],
        rows=rows,
        note="Samples whose residual, measured anew on the answer, is within the tolerance. All "
        "have the same number of evaluations, but for Broyden's method, ours and torchdeq's: at "
        "most 400, as it keeps every step.",
    )


def ratios(reports: Sequence[Report]) -> Table:
    """How many times as fast, problem by problem."""
    rows: list[list[Cell]] = []
    for r in reports:
        best, default = best_peer(r), r.get("default")
        rows.append(
            [
                r.problem,
                r.f_ms,
                *(_same(r, name) for name in SAME),
                None if best is None else best.solver.removeprefix("torchdeq "),
                ratio(default, best),
                _bound(r),
                None if default is None else r.overhead(default),
            ]
        )
    return Table(
        title="Solvers: times as fast as torchdeq",
        columns=[
            "problem",
            "f, ms",
            *SAME,
            "torchdeq's best",
            "default against it",
            "if only f took time",
            "overhead of the default",
        ],
        rows=rows,
        note="The method's name: against the same method of torchdeq. A dash: one of the two did "
        "not reach the tolerance with every sample, or was not timed.",
    )


def costs(reports: Sequence[Report]) -> Table:
    """What each solver costs beside f, over the problems that it solved."""
    rows: list[list[Cell]] = []
    for name in _names(reports):
        solved = [(r, m) for r in reports if (m := r.get(name)) is not None and m.all_reached]
        overheads = [o for r, m in solved if (o := r.overhead(m)) is not None]
        ops = [m.ops_mean for _, m in solved if m.ops_mean is not None]
        reads = [m.reads / m.evals_max for _, m in solved if m.reads is not None and m.evals_max]
        sizes = [m.bytes / r.state_bytes for r, m in solved if m.bytes]
        rows.append(
            [
                name,
                len(solved),
                geometric_mean(overheads) if overheads else None,
                *(statistics.median(f) if f else None for f in (ops, reads, sizes)),
            ]
        )
    return Table(
        title="Solvers: what they cost beside f",
        columns=["solver", "solved", "overhead", "ops/eval", "reads/eval", "bytes/state"],
        rows=rows,
        note="Over the problems that it solved: the geometric mean of the overhead, the medians of "
        "the operations (all of a solve, for each evaluation), of the host reads and of the peak "
        "allocated, in states.",
    )


def problem_table(report: Report) -> Table:
    """All about one problem."""
    best = best_peer(report)
    rows: list[list[Cell]] = []
    for m in report.measured:
        note = ""
        if m.error:
            note = m.error
        elif not m.all_reached:
            note = f"{100 * m.reached / m.samples:.0f} % reached the tolerance"
        if m.wrong:
            note += f"; {m.wrong} wrongly called converged"
        mine = m.family == "equilibria"
        rows.append(
            [
                m.solver,
                m.evals_mean,
                m.evals_max,
                m.f_samples,
                None if m.residual is None else f"{m.residual:.1e}",
                m.ms,
                ratio(m, peer(report, m)) if mine else None,
                ratio(m, best),
                report.overhead(m),
                m.ops,
                m.ops_mean,
                m.reads,
                None if m.bytes is None else m.bytes / report.state_bytes,
                note,
            ]
        )
    f = "" if report.f_ms is None else f", f {report.f_ms:.3g} ms"
    return Table(
        title=f"{report.problem}: {report.batch} x {report.entries}{f}",
        columns=[
            "solver",
            "evals, mean",
            "max",
            "f-samples",
            "residual, max",
            "ms",
            "x same method",
            "x torchdeq's best",
            "overhead",
            "ops/eval",
            "mean",
            "reads",
            "bytes/state",
            "",
        ],
        rows=rows,
        note="",
    )


def details(reports: Sequence[Report]) -> Table:
    """Every figure of every problem."""
    tables = [problem_table(report) for report in reports]
    columns = ["problem", *(tables[0].columns if tables else [])]
    rows = [
        [report.problem, *row]
        for report, table in zip(reports, tables, strict=True)
        for row in table.rows
    ]
    return Table(
        title="Solvers: all figures",
        columns=columns,
        rows=rows,
        note="x same method, x torchdeq's best: how many times as fast. ops/eval: ATen operations "
        "that compute or copy, between two calls of f, the median; and all of the solve's for each "
        "evaluation, products among them, the mean. reads: values that the host "
        "waited for in a solve. bytes/state: peak allocated in a solve, in states.",
    )
