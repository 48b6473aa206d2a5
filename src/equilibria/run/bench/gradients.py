"""One training step by each way to a gradient, and what its gradient is worth."""

from __future__ import annotations

import functools
import math
import statistics
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from equilibria.run.bench import count
from equilibria.run.bench.cells import Case, compare
from equilibria.run.bench.methods import Method
from equilibria.run.bench.solvers import SLACK, Row, add_sizes, describe_error, relative_residual
from equilibria.run.memory import peak_bytes

SECONDS = 12.0  # for the rounds of one case, where that leaves enough of them
FEWEST = 5  # rounds
SLOW = 5  # times as long as the fastest: one round must do
DECADES, FINER = range(1, 7), 8  # tolerances of 10^-1 to 10^-6, and so many steps in each decade


def measure(
    case: Case,
    methods: Sequence[Method],
    *,
    rtol: float,
    rounds: int,
    memory: bool = True,
    bound: float | None = None,
) -> list[Row]:
    """Take a training step by each method and return a row for each.

    What was not measured has no column. The first row tells of the case too.

    Args:
        case: the layer, its input and its exact gradient.
        methods: ways to the gradient.
        rtol: relative tolerance, forward and backward.
        rounds: steps by each method, at most; fewer where they take long; 0 times nothing.
        memory: measure peak bytes too.
        bound: each method takes, in place of `rtol`, the loosest tolerance by which its gradient's
            error is no larger; one that has none down to 1e-6 is not timed.

    Returns:
        Of the case: `entries` of one sample's state, `state_bytes` of the whole state, `radius` and
        `smallest` as in `Case`, `rounds`, `bound`.

        Of each method: `method`, `family`, `exact` and its `rtol`; `failure`, why there is no
        gradient; `samples` in the batch and `reached`, those whose forward residual, measured anew,
        is within the tolerance; `cosine` with the exact gradient, and `error`, the length of the
        difference relative to it; `products` (vector-Jacobian), the mean, and `products_max`;
        `failed`, samples whose backward solve says that it did not converge; `forward_ms`,
        `backward_ms` and `ms`, median milliseconds of each and of both; `bytes`, the peak of
        forward and backward, less the gradients themselves.
    """
    device = case.x.device
    rows: dict[str, Row] = {}
    steps: dict[str, Callable[[], None]] = {}
    took: dict[str, float] = {}
    times: dict[str, list[tuple[float, float]]] = {}  # of a forward and its backward
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would warn of is in the figures
        for method in methods:
            row = rows[method.name] = _first(method, case, rtol, bound)
            if row.get("error", math.nan) <= (math.inf if bound is None else bound):
                own = times[method.name] = []
                step = steps[method.name] = functools.partial(_step, method, case, row["rtol"], own)
                took[method.name] = count.seconds(step, device)
                if memory:
                    rows[method.name]["bytes"] = peak_bytes(step, device)
                own.clear()
        if rounds and took:
            slow = {name: 1 for name, time in took.items() if time > SLOW * min(took.values())}
            round_trip = sum(time for name, time in took.items() if name not in slow)
            rounds = count.fit_rounds(rounds, SECONDS, round_trip, FEWEST)
            whole = count.interleave(steps, device, rounds=rounds, few=slow)
            for name, seconds in whole.items():
                sides = zip(
                    ("forward_ms", "backward_ms"), zip(*times[name], strict=True), strict=True
                )
                rows[name] |= {side: 1e3 * statistics.median(own) for side, own in sides}
                rows[name]["ms"] = 1e3 * seconds
    case.clear()
    about = {"radius": case.radius, "smallest": case.smallest, "rounds": rounds, "bound": bound}
    return add_sizes(rows, case.x, **about)


def _first(method: Method, case: Case, rtol: float, bound: float | None) -> Row:
    """The first step at a tolerance, or at the loosest that keeps the gradient's error in bound."""
    if bound is None:
        return _check(method, case, rtol)
    row: Row = {}
    for decade in DECADES:
        row = _check(method, case, 10.0**-decade)
        if row.get("error", math.inf) <= bound:
            break
    else:
        return row
    for k in range(1 - FINER, 0):  # from the loosest
        finer = _check(method, case, row["rtol"] * 10 ** (-k / FINER))
        if finer.get("error", math.inf) <= bound:
            return finer
    return row


def _check(method: Method, case: Case, rtol: float) -> Row:
    """A step: is the gradient right?"""
    case.clear()
    row: Row = {
        "rtol": rtol,
        "method": method.name,
        "family": method.family,
        "exact": method.exact,
        "samples": len(case.x),
    }
    try:
        value, ask = method.forward(case, rtol)
        (value * case.target).sum().backward()
        said = ask()
    except Exception as error:  # a peer's may be anything; it is reported as it is
        return row | {"failure": describe_error(error)}
    row["cosine"], row["error"] = compare(case)
    with torch.no_grad():
        residual = relative_residual(case.cell(value, case.x), value)
    row |= {"reached": int((residual <= SLACK * rtol).sum()), "failed": said.failed}
    if said.products is not None:
        row["products"] = float(said.products.double().mean())
        row["products_max"] = int(said.products.max())
    return row


def _step(method: Method, case: Case, rtol: float, times: list[tuple[float, float]]) -> None:
    """Forward and backward into gradients that are there already, and how long each took."""
    losses: list[Tensor] = []

    def forward() -> None:
        value, _ = method.forward(case, rtol)
        losses.append((value * case.target).sum())

    calls = forward, lambda: losses[0].backward()
    took, took_back = (count.seconds(call, case.x.device) for call in calls)
    times.append((took, took_back))
