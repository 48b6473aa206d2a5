"""One training step by each way to a gradient, and what its gradient is worth."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from equilibria.bench import clock
from equilibria.bench.cells import Case, compare
from equilibria.bench.methods import Method
from equilibria.bench.solvers import SLACK, Say

__all__ = ["Gradient", "GradientReport", "measure"]

SECONDS = 12.0  # of turns on one case, where that leaves enough turns
FEWEST = 5  # turns
SLOW = 5  # times as long as the fastest: one turn must do


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """One method on one case. What was not measured is None.

    Attributes:
        method, family, exact: the method's.
        error_text: why there is no gradient.
        reached: samples whose forward residual, measured anew, is within the tolerance.
        samples: in the batch.
        cosine: with the exact gradient.
        error: length of the difference to the exact gradient, relative to it.
        products_mean, products_max: vector-Jacobian products.
        failed: samples whose backward solve says that it did not converge.
        forward_ms, backward_ms, ms: median milliseconds of each, and of both.
        bytes: peak of forward and backward, less the gradients themselves.
    """

    method: str
    family: str
    exact: bool
    error_text: str | None = None
    reached: int = 0
    samples: int
    cosine: float | None = None
    error: float | None = None
    products_mean: float | None = None
    products_max: int | None = None
    failed: int = 0
    forward_ms: float | None = None
    backward_ms: float | None = None
    ms: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class GradientReport:
    """One case and all who differentiated it.

    Attributes:
        problem: the case's name.
        batch, entries, state_bytes: of the state.
        radius, smallest: as in `Case`.
        turns: of each method.
    """

    problem: str
    batch: int
    entries: int
    state_bytes: int
    radius: float | None
    smallest: float | None
    turns: int
    measured: Sequence[Gradient]

    def json(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> GradientReport:
        """From plain data."""
        return cls(**{**data, "measured": [Gradient(**each) for each in data["measured"]]})


def measure(
    case: Case,
    methods: Sequence[Method],
    *,
    rtol: float,
    turns: int,
    memory: bool = True,
    say: Say = lambda text: None,
) -> GradientReport:
    """Lets the methods take a training step.

    Args:
        case: the layer, its input and its exact gradient.
        rtol: relative tolerance, forward and backward.
        turns: steps by each method, at most; fewer where they take long; 0 times nothing.
        memory: measure peak bytes too.
        say: called with what is happening.
    """
    device = case.x.device
    found: dict[str, Gradient] = {}
    steps: dict[str, Callable[[], None]] = {}
    spent: dict[str, dict[str, list[float]]] = {}
    took: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would warn of is in the figures
        for method in methods:
            say(f"{case.name}: {method.name}")
            gradient = _first(method, case, rtol)
            if gradient.error_text is None:
                spent[method.name] = {"forward": [], "backward": []}
                steps[method.name] = _timed(method, case, rtol, spent[method.name])
                took[method.name] = clock.seconds(steps[method.name], device)
                if memory:
                    peak = clock.peak_bytes(_step(method, case, rtol), device)
                    gradient = dataclasses.replace(gradient, bytes=peak)
            found[method.name] = gradient
        if turns and took:
            slow = {name: 1 for name, time in took.items() if time > SLOW * min(took.values())}
            round_trip = sum(time for name, time in took.items() if name not in slow)
            turns = min(turns, max(FEWEST, int(SECONDS / round_trip)))
            say(f"{case.name}: {turns} turns")
            for parts in spent.values():
                parts["forward"].clear()
                parts["backward"].clear()
            times = clock.interleaved(steps, device, turns=turns, few=slow)
            for name, seconds in times.items():
                found[name] = dataclasses.replace(
                    found[name],
                    ms=1e3 * seconds,
                    forward_ms=1e3 * clock.median(spent[name]["forward"]),
                    backward_ms=1e3 * clock.median(spent[name]["backward"]),
                )
    for p in (*case.cell.parameters(), case.x):
        p.grad = None
    return GradientReport(
        problem=case.name,
        batch=len(case.x),
        entries=case.x[0].numel(),
        state_bytes=case.x.numel() * case.x.element_size(),
        radius=case.radius,
        smallest=case.smallest,
        turns=turns,
        measured=list(found.values()),
    )


def _zero(case: Case) -> None:
    for p in (*case.cell.parameters(), case.x):
        p.grad = None


def _first(method: Method, case: Case, rtol: float) -> Gradient:
    """The first step: is the gradient right?"""
    _zero(case)
    own = {"method": method.name, "family": method.family, "exact": method.exact}
    try:
        value, ask = method.forward(case, rtol)
        (value * case.target).sum().backward()
        told = ask()
    except Exception as error:  # a peer's may be anything; it is reported as it is
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return Gradient(**own, error_text=text, samples=len(case.x))
    compared = compare(case.cell, case.x, case.exact)
    with torch.no_grad():
        z = value.detach()
        image = case.cell(z, case.x)
        residual = (image - z).norm(dim=1) / image.norm(dim=1)
    products = told.products
    return Gradient(
        **own,
        samples=len(case.x),
        reached=int((residual <= SLACK * rtol).sum()),
        cosine=compared.cosine,
        error=compared.error,
        products_mean=None if products is None else float(products.double().mean()),
        products_max=None if products is None else int(products.max()),
        failed=told.failed,
    )


def _step(method: Method, case: Case, rtol: float) -> Callable[[], None]:
    """Forward and backward into gradients that are there already."""

    def step() -> None:
        value, _ = method.forward(case, rtol)
        (value * case.target).sum().backward()

    return step


def _timed(
    method: Method, case: Case, rtol: float, spent: dict[str, list[float]]
) -> Callable[[], None]:
    """The same, and notes how long each of the two took."""

    def step() -> None:
        holder: list[Tensor] = []

        def forward() -> None:
            value, _ = method.forward(case, rtol)
            holder.append((value * case.target).sum())

        spent["forward"].append(clock.seconds(forward, case.x.device))
        spent["backward"].append(clock.seconds(lambda: holder[0].backward(), case.x.device))

    return step
