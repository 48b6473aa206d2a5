"""The use of depth as `equilibria depth` stored it: plots and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equilibria.metric import Metric
from equilibria.run.report.panel import Panel, Series


def panels(reports: Sequence[Mapping[str, Any]], metric: Metric) -> list[Panel]:
    """The figure against evaluations, for each split, and evaluations against difficulty.

    Args:
        reports: of splits, as in depth.json.
        metric: the primary one.
    """
    drawn = [
        Panel(
            title="What further evaluations are worth",
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
                title="What hard instances take",
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
                title="Right for good, and settled",
                x="share of the samples",
                y="evaluations",
                log_y=True,
                series=[
                    Series(label=f"{each['split']}, {name}", x=_shares(values), y=sorted(values))
                    for each in settled
                    for name, values in (
                        ("right for good", each["right_after"]),
                        ("settled", each["evals"]),
                    )
                ],
            )
        )
    return drawn


def _shares(values: Sequence[int]) -> list[float]:
    return [(place + 1) / len(values) for place in range(len(values))]
