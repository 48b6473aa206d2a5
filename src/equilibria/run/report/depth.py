"""The use of depth as `equilibria depth` stored it: plots and a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from equilibria.metric import Metric
from equilibria.run.records import SplitDepth
from equilibria.run.report.panel import Panel, Series
from equilibria.run.report.reading import number
from equilibria.run.report.words import UNKNOWN, TextTable, decimal, figure, keep_known
from equilibria.words import percent

END = "to its end"
"""What a table calls a solve that nothing stops."""

EARLY = "What further evaluations are worth"
HARD = "What hard instances take"
SETTLED = "Right for good, and solved"

NOTES = {
    EARLY: "Answers are read from the iterate, whatever its residual. In the table, solves also "
    "begin elsewhere; the same answer is one within 1 % of that from the usual start.",
    HARD: "If the network uses its depth as an algorithm does, harder instances take longer.",
    SETTLED: "A solve goes on after its answer is right: the lower curve of a split shows the "
    "evaluations that its answers needed, the upper one those until their solves ended. Both are "
    "of the answers that are right, and end at their share of the samples.",
}
"""What to look for in each panel, by its title."""


def panels(reports: Sequence[SplitDepth], metric: Metric) -> list[Panel]:
    """The figure against evaluations, evaluations against difficulty, and evaluations to an answer
    that is right for good, each of all splits.

    Args:
        reports: of splits, as in depth.json.
        metric: the primary one.
    """
    drawn = [
        Panel(
            title=EARLY,
            x="evaluations",
            y=f"{metric.label}, read from the iterate",
            log_x=True,
            percent=metric.unit.strip() == "%",
            series=[
                Series(
                    label=each["split"],
                    x=[int(depth) for depth in each["at"]],
                    y=list(each["at"].values()),
                    style="marked",
                )
                for each in reports
            ],
        )
    ]
    hard = [each for each in reports if each["correlation"] is not None]
    if hard:
        drawn.append(
            Panel(
                title=HARD,
                x="difficulty",
                y="evaluations until the solve ends",
                series=[
                    Series(
                        label=f"{each['split']}, rank correlation {each['correlation']:.2f}",
                        x=each["difficulty"],
                        y=each["evals"],
                        style="rings",
                    )
                    for each in hard
                ],
            )
        )
    settled = [each for each in reports if each["right_after"]]
    if settled:
        drawn.append(
            Panel(
                title=SETTLED,
                x="share of the samples",
                y="evaluations",
                log_y=True,
                series=[
                    Series(
                        label=f"{each['split']}, {name}",
                        x=[(place + 1) / each["samples"] for place in range(len(values))],
                        y=sorted(values),
                    )
                    for each in settled
                    for name, values in (
                        ("right for good", each["right_after"]),
                        ("solved", each["right_evals"]),
                    )
                ],
            )
        )
    return drawn


def solves(reports: Sequence[SplitDepth], metric: Metric) -> TextTable:
    """The figure of solves that are stopped early, that end, and that begin elsewhere.

    Args:
        reports: of splits, as in depth.json.
        metric: the primary one.
    """
    rows = [row for each in reports for row in _list_solves(each)]
    split = [("data", lambda row: row["split"])] if len(reports) > 1 else []
    return keep_known(
        [
            *split,
            ("solve", lambda row: row["solve"]),
            (metric.label, lambda row: figure(metric, row["figure"])),
            ("evaluations", lambda row: decimal(number(row, "evals"))),
            ("converged", lambda row: _share(row, "converged")),
            ("same answer", lambda row: _share(row, "same")),
        ],
        rows,
    )


def _list_solves(report: SplitDepth) -> Iterator[dict[str, Any]]:
    """A row for each way to solve the instances of a split."""
    split = report["split"]
    for depth, value in report["at"].items():
        yield {"split": split, "solve": f"stopped after {depth}", "figure": value}
    mean = fmean(report["evals"]) if report["evals"] else math.nan
    whole = {"figure": report["figure"], "evals": mean, "converged": report["converged"]}
    yield {"split": split, "solve": END, **whole}
    for kind, each in report["starts"].items():
        yield {"split": split, "solve": f"from {kind}", **each}


def _share(row: Mapping[str, Any], column: str) -> str:
    return percent(row[column]) if column in row else UNKNOWN
