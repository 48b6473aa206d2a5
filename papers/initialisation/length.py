"""Length variance of linear networks against the distance from the critical V."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import NOT_RUN, Chart, Pivot, Table, curve, of
from equilibria.theory import length_variance_exponent
from papers.initialisation.common import COLORS, PAPER, lines
from papers.initialisation.linear import point, slope, theory
from papers.published import AGARWALA_2022, read_published

COARSE = tuple(round(10 ** (-step / 4), 6) for step in range(1, 13))
FINE = tuple(round(10 ** (-step / 12), 6) for step in range(1, 37))
"""Distances delta = 1 - V / V_c: a Gaussian W is inverted at each, the others' cost nothing."""

LARGE, SMALL, DRAWS = 5000, 1000, 10
"""Units of the figure's network, those of networks drawn repeatedly, and how often."""

WIDTH, STATES, APART = 300, 20, (0.3, 0.2, 0.1, 0.05)
"""Networks with untied weights: units, recorded states, distances."""

RANGES = {"gaussian": (0.1, 0.6), "orthogonal": (0.01, 0.3), "goe": (0.03, 0.3)}
"""Distances over which tied exponents are fitted: below, N is too small for the limit, from about
N^(-1/2) for a Gaussian W, N^(-2/3) for the GOE and 1/N for orthogonal W."""


def points(scale: Scale) -> list[Point]:
    """One W of 5,000 units for each ensemble, ten of 1,000, and networks with untied weights."""
    deltas = {each: COARSE if each == "gaussian" else FINE for each in PAPER}
    return [
        *(point(each, "tied", LARGE, deltas[each], 1, minutes=1.0) for each in PAPER),
        *(point(each, "tied", SMALL, deltas[each], DRAWS, minutes=0.1) for each in PAPER),
        *(point(each, "untied", WIDTH, APART, STATES, minutes=0.2) for each in PAPER),
    ]


def exponents(data: Data) -> Iterator[list[Any]]:
    """Slopes of what was measured, and of the formula over the same distances."""
    for paper in read_published(AGARWALA_2022, "section 2.2.3"):
        ensemble, weights = paper["ensemble"], paper["weights"]
        exact = length_variance_exponent(ensemble, tied=weights == "tied")
        head = [PAPER[ensemble], weights, paper["exponent"], exact]
        width, span = (LARGE, RANGES[ensemble]) if weights == "tied" else (WIDTH, (0, 1))
        rows = data.series("delta", ensemble=ensemble, weights=weights, width=width)
        rows = rows[rows["delta"].between(*span)].set_index("delta")
        if rows.empty:
            yield [*head, NOT_RUN]
            continue
        formula = rows.index.to_series().map(partial(theory, "length", ensemble, weights))
        fits = [round(slope(each), 2) for each in (rows["length"], formula)]
        yield [*head, *fits, f"{rows.index.min():.2g} to {rows.index.max():.2g}", width]


def _limit(rows: Frame) -> float:
    return theory("length", rows["ensemble"].iloc[0], "tied", rows["delta"].iloc[0])


def _range(rows: Frame) -> str:
    low, high = (of(column, width=SMALL)(rows) for column in ("length_min", "length_max"))
    return f"{low:.3g} to {high:.3g}" if isinstance(low, float) else ""


def _evaluate_eq_14(delta: float) -> float:
    """Eq. 14, N sigma^2 of Gaussian and GOE networks with untied weights, as the paper has it."""
    V = 1 - delta
    return 2 * (2 / (1 - V) ** 2 + 1 / (1 - V**2) ** 2 - 2 / (1 - V**2))


def _chart(title: str, weights: str, width: int, *more: Any, **options: Any) -> Chart:
    """The theory of each ensemble, and what was measured."""
    deltas = [delta for delta in FINE if weights == "tied" or delta >= 0.01]
    style = "line" if options["style"] == "points" else "dashed"
    limits = [
        curve("", deltas, partial(theory, "length", each, weights), color=COLORS[each], style=style)
        for each in PAPER
    ]
    where = {"weights": weights, "width": width}
    measured = lines(x="delta", y="length", where=where, **options)
    return Chart(
        title=title,
        x="distance, δ = 1 - V / V_c",
        y="length variance, N σ²",
        marks=[*limits, measured, *(curve(label, deltas, y) for label, y in more)],
        log_x=True,
        log_y=True,
    )


STUDY = Study(
    item="Figure 1",
    title="Length variance near the critical V",
    points=points,
    views=[
        Table(
            title="Exponents of the length variance's divergence",
            columns=[
                *("ensemble", "weights", "published", "formula, delta to 0"),
                *("fitted to measurements", "fitted to formula", "over delta", "N"),
            ],
            rows=exponents,
            note="Slopes of log N sigma^2 against log delta; measurement and formula are fitted "
            "over the same delta. Published: section 2.2.3, whose -2 for untied Gaussian and GOE "
            f"weights rests on eq. 14; see the errata. Tied: one W; untied: medians over {STATES} "
            "states.",
        ),
        Pivot(
            title="Length variance N sigma^2 near the critical V, tied weights",
            index={"ensemble": "ensemble", "delta": "delta"},
            each="delta",
            where={"weights": "tied", "delta": COARSE},
            words={"ensemble": PAPER, "delta": {delta: f"{delta:.3g}" for delta in COARSE}},
            values={
                "theory": _limit,
                f"one W, N = {LARGE}": of("length", width=LARGE),
                f"median of {DRAWS}, N = {SMALL}": of("length", width=SMALL),
                "range": _range,
            },
            note="delta = 1 - V / V_c, V_c = 1/4 for the GOE and 1 for the others. 2 tr (M^T M)^2, "
            "M = (I - W)^-1, by eigenvalues or by Cholesky factors, in float64.",
        ),
        _chart(f"Fig. 1: tied weights, one W of {LARGE} units (lines: theory)", "tied", LARGE,
               style="points"),
        _chart(f"{DRAWS} W of {SMALL} units: median and range (dashed: theory)", "tied", SMALL,
               style="line", low="length_min", high="length_max"),
        _chart(f"untied weights, {WIDTH} units (lines: theory)", "untied", WIDTH,
               ("eq. 14 as printed, Gaussian and GOE", _evaluate_eq_14), style="points"),
    ],
)  # fmt: skip
