"""What single measurements of gradients add up to: tables for a reader."""

from __future__ import annotations

from collections.abc import Sequence

from equilibria.bench.gradients import Gradient, GradientReport
from equilibria.bench.record import Cell, Table
from equilibria.bench.summary import geometric_mean

__all__ = ["accurate", "adjoint_table", "adjoints", "speed", "training_table", "trainings"]

ACCURATE = 20  # tolerances: an error within them is what an exact gradient promises here
AIM = 1.1


def accurate(each: Gradient, rtol: float) -> bool:
    """Is this the gradient of the fixed point, as far as the tolerances promise it?"""
    return (
        each.exact
        and each.error_text is None
        and each.reached == each.samples
        and each.error is not None
        and each.error <= ACCURATE * rtol
    )


def _note(each: Gradient, rtol: float) -> str:
    if each.error_text:
        return each.error_text
    words: list[str] = []
    if each.reached < each.samples:
        words.append(f"forward: {100 * each.reached / each.samples:.0f} % reached the tolerance")
    if each.failed:
        words.append(f"backward: says that {each.failed} failed")
    if each.exact and not words and not accurate(each, rtol):
        words.append("called exact, and is not")
    return "; ".join(words)


def adjoint_table(report: GradientReport, rtol: float) -> Table:
    """All gradients of one case."""
    rows: list[list[Cell]] = [
        [
            each.method,
            each.cosine,
            None if each.error is None else f"{each.error:.1e}",
            each.products_mean,
            each.products_max,
            each.backward_ms,
            each.ms,
            None if each.bytes is None else each.bytes / report.state_bytes,
            _note(each, rtol),
        ]
        for each in report.measured
    ]
    known = ""
    if report.radius is not None and report.smallest is not None:
        known = (
            f", radius {report.radius:.3g}, smallest singular value of I - J {report.smallest:.2g}"
        )
    return Table(
        title=f"{report.problem}: {report.batch} x {report.entries}{known}",
        columns=[
            "gradient",
            "cosine",
            "relative error",
            "products, mean",
            "max",
            "backward, ms",
            "step, ms",
            "bytes/state",
            "",
        ],
        rows=rows,
    )


def adjoints(reports: Sequence[GradientReport], rtol: float) -> list[Table]:
    """Cosine and error by radius, then all figures."""
    names = list(dict.fromkeys(m.method for r in reports for m in r.measured))

    def pick(name: str, report: GradientReport) -> Gradient | None:
        return next((m for m in report.measured if m.method == name), None)

    def cells(name: str, figure: str) -> list[Cell]:
        found = [pick(name, report) for report in reports]
        return [None if m is None else getattr(m, figure) for m in found]

    at = [f"radius {r.radius:.2g}" if r.radius else r.problem for r in reports]
    errors = [
        [name, *(None if c is None else f"{c:.1e}" for c in cells(name, "error"))] for name in names
    ]
    cosines = [[name, *cells(name, "cosine")] for name in names]
    times = [[name, *cells(name, "backward_ms")] for name in names]
    tables = [adjoint_table(report, rtol) for report in reports]
    return [
        Table(
            title="Gradients: relative error",
            columns=["gradient", *at],
            rows=errors,
            note="Against the exact gradient, all parameters and the input together, computed "
            f"densely in float64. {_smallest(reports)}",
        ),
        Table(
            title="Gradients: cosine with the exact one", columns=["gradient", *at], rows=cosines
        ),
        Table(title="Gradients: milliseconds of a backward", columns=["gradient", *at], rows=times),
        Table(
            title="Gradients: all figures",
            columns=["problem", *(tables[0].columns if tables else [])],
            rows=[
                [r.problem, *row] for r, t in zip(reports, tables, strict=True) for row in t.rows
            ],
            note="bytes/state: peak of forward and backward less the gradients themselves, in "
            "states. products: vector-Jacobian products; a dash where the method counts none.",
        ),
    ]


def _smallest(reports: Sequence[GradientReport]) -> str:
    """What divides the tolerances in the bound on an exact gradient's error."""
    found = [f"{r.smallest:.2g}" for r in reports if r.smallest is not None]
    return f"Smallest singular values of I - J: {', '.join(found)}." if found else ""


def _fastest(report: GradientReport, rtol: float) -> Gradient | None:
    timed = [
        m
        for m in report.measured
        if m.family == "torchdeq" and m.ms is not None and accurate(m, rtol)
    ]
    return min(timed, key=lambda m: m.ms or 0.0) if timed else None


def speed(report: GradientReport, name: str, rtol: float) -> float | None:
    """How many times as fast as torchdeq's fastest step with an accurate gradient."""
    best = _fastest(report, rtol)
    each = next((m for m in report.measured if m.method == name), None)
    if best is None or each is None or best.ms is None or each.ms is None:
        return None
    return best.ms / each.ms if accurate(each, rtol) else None


def training_table(report: GradientReport, rtol: float) -> Table:
    """All training steps of one case, the fastest first."""
    best = _fastest(report, rtol)
    ordered = sorted(report.measured, key=lambda m: m.ms or float("inf"))
    rows: list[list[Cell]] = [
        [
            m.method,
            m.ms,
            m.forward_ms,
            m.backward_ms,
            None if best is None or not best.ms or not m.ms else best.ms / m.ms,
            None if m.error is None else f"{m.error:.1e}",
            m.products_mean,
            _note(m, rtol),
        ]
        for m in ordered
    ]
    return Table(
        title=f"{report.problem}: {report.batch} x {report.entries}",
        columns=[
            "step",
            "ms",
            "forward",
            "backward",
            "x torchdeq's best",
            "gradient's error",
            "products",
            "",
        ],
        rows=rows,
    )


def trainings(reports: Sequence[GradientReport], rtol: float) -> list[Table]:
    """Training steps beside torchdeq's fastest, and all figures."""
    names = list(
        dict.fromkeys(m.method for r in reports for m in r.measured if m.family == "equilibria")
    )
    rows: list[list[Cell]] = []
    for report in reports:
        best = _fastest(report, rtol)
        rows.append(
            [
                report.problem,
                None if best is None else best.method.removeprefix("torchdeq "),
                None if best is None else best.ms,
                *(speed(report, name, rtol) for name in names),
            ]
        )
    means: list[Cell] = []
    for name in names:
        figures = [s for r in reports if (s := speed(r, name, rtol)) is not None]
        means.append(geometric_mean(figures) if figures else None)
    rows.append(["geometric mean", "", "", *means])
    tables = [training_table(report, rtol) for report in reports]
    return [
        Table(
            title="Training step: times as fast as torchdeq's fastest exact setting",
            columns=["width x batch", "torchdeq's fastest", "its ms", *names],
            rows=rows,
            note=f"Forward and backward. Of torchdeq's 18 exact settings (ift or hook_ift, three "
            f"solvers forward, three backward) the fastest on that problem whose gradient is "
            f"within {ACCURATE} tolerances of the exact one in float64. Ours: forward solver, "
            f"linear solver. Aim for the default: ≥ {AIM:g}.",
        ),
        Table(
            title="Training step: all figures",
            columns=["problem", *(tables[0].columns if tables else [])],
            rows=[
                [r.problem, *row] for r, t in zip(reports, tables, strict=True) for row in t.rows
            ],
        ),
    ]
