"""Gradients of all adjoints compared with the exact one, as `equilibria gradients` stored them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equilibria.run.report.panel import Panel, Series
from equilibria.run.report.reading import number
from equilibria.run.report.words import TextTable, decimal, keep_known, mib


def panels(found: Mapping[str, Any]) -> list[Panel]:
    """Cosine against time and against memory, a point for each adjoint and a colour for each kind.

    Args:
        found: content of gradients.json.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in found["rows"]:
        kinds.setdefault(row["adjoint"].partition("(")[0], []).append(row)
    level = [(f"floor {found['floor']:g}", found["floor"])]
    return [
        Panel(
            title=title,
            x=x,
            y="cosine with the exact gradient",
            levels=level,
            series=[
                Series(
                    label=kind,
                    x=[number(row, column) / unit for row in rows],
                    y=[number(row, "cosine") for row in rows],
                    style="points",
                )
                for kind, rows in kinds.items()
            ],
        )
        for title, x, column, unit in (
            ("Gradient against time", "forward and backward, ms", "step_ms", 1.0),
            ("Gradient against memory", "peak of forward and backward, MiB", "bytes", 2.0**20),
        )
    ]


def table(found: Mapping[str, Any]) -> TextTable:
    """The figures of each adjoint.

    Args:
        found: content of gradients.json.
    """
    return keep_known(
        [
            ("adjoint", lambda row: str(row["name"])),
            ("cosine", lambda row: decimal(number(row, "cosine"), 4)),
            ("worst sample", lambda row: decimal(number(row, "sample_cosine"), 3)),
            ("length", lambda row: decimal(number(row, "norm_ratio"), 3)),
            ("cost", lambda row: decimal(number(row, "cost"))),
            ("ms, step", lambda row: decimal(number(row, "step_ms"))),
            ("ms, backward", lambda row: decimal(number(row, "backward_ms"))),
            ("memory", lambda row: mib(number(row, "bytes"))),
        ],
        found["rows"],
    )
