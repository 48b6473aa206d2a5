"""What the rows of the benchmarks of gradients come to, and their points."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from equilibria.bench import gradients
from equilibria.bench.cells import Case
from equilibria.bench.contestants import require_peers
from equilibria.bench.methods import Method
from equilibria.bench.solvers import Row
from equilibria.experiments.data import Data, Frame
from equilibria.experiments.studies.bench._tables import filled
from equilibria.experiments.study import Context, Point

__all__ = ["ACCURATE", "compared", "points"]

ACCURATE = 20
"""Tolerances within which an error is what an exact gradient promises here."""

FIGURES = (
    *("family", "exact", "failure", "samples", "reached", "failed", "cosine", "error", "products"),
    *("products_max", "forward_ms", "backward_ms", "ms", "bytes"),
)


def points(
    cases: Mapping[str, Callable[..., Case]],
    methods: Callable[[], Sequence[Method]],
    **options: Any,
) -> list[Point]:
    """Return a point for each case; `options` are those of `bench.gradients.measure`."""
    step = functools.partial(_step, cases=cases, methods=methods, **options)
    return [Point(factors={"problem": name}, measures=[step], minutes=0.7) for name in cases]


def _step(
    context: Context,
    cases: Mapping[str, Callable[..., Case]],
    methods: Callable[[], Sequence[Method]],
    **options: Any,
) -> list[Row]:
    """A row for each method; see `bench.gradients.measure`."""
    require_peers("torchdeq")
    name = str(context.factors["problem"])
    case = cases[name](name, device=context.device, dtype=torch.float32)
    return gradients.measure(case, methods(), **options)


def compared(data: Data, rtol: float) -> Frame:
    """Return all rows, and how fast they are beside torchdeq's fastest accurate one."""
    rows = filled(data, "method", FIGURES, ("state_bytes", "radius"))
    rows = rows.astype({"products_max": "Int64", "exact": bool})
    right = rows["failure"].isna() & (rows["reached"] == rows["samples"])
    rows["accurate"] = rows["exact"] & right & (rows["error"] <= ACCURATE * rtol)
    peers = rows[(rows["family"] == "torchdeq") & rows["accurate"] & rows["ms"].notna()]
    best = peers.sort_values("ms").drop_duplicates("problem").set_index("problem")
    rows["best_ms"] = rows["problem"].map(best["ms"])
    rows["fastest"] = rows["problem"].map(best["method"].astype(str).str.removeprefix("torchdeq "))
    rows["best"] = rows["best_ms"] / rows["ms"]
    rows["speed"] = rows["best"].where(rows["accurate"])
    rows["states"] = rows["bytes"] / rows["state_bytes"]
    rows["said"] = [_said(row) for row in rows.to_dict("records")]
    return rows


def _said(row: dict[str, Any]) -> str:
    """What a reader is told of a gradient that is not right."""
    if isinstance(row["failure"], str):
        return row["failure"]
    words: list[str] = []
    if row["reached"] < row["samples"]:
        share = 100 * row["reached"] / row["samples"]
        words.append(f"forward: {share:.0f} % reached the tolerance")
    if row["failed"]:
        words.append(f"backward: says that {row['failed']:.0f} failed")
    if row["exact"] and not words and not row["accurate"]:
        words.append("called exact, and is not")
    return "; ".join(words)
