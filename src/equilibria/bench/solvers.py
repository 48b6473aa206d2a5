"""The benchmark of forward solvers: one problem at a time, all contestants in turn.

What a contestant claims is not believed: its answer is put into f, and every sample's residual
measured by one definition, ||f(z) - z|| / ||f(z)||. A contestant that left a sample above the
tolerance is marked with the share that it reached, and its time is not compared.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from equilibria.bench import clock
from equilibria.bench.contestants import Answer, Contestant
from equilibria.bench.count import Calls, Counts, Spent, count
from equilibria.bench.problems import Problem

__all__ = ["Measured", "Report", "measure", "relative_residual"]

SLACK = 1.01  # a residual on the tolerance is rounded otherwise when it is measured anew
SECONDS = 6.0  # of turns on one problem, where that leaves enough turns
FEWEST = 5  # turns
FEW = 3  # turns where one of all takes long, and of SciPy
LONG = 1.0  # seconds of a solve by SciPy over which one turn must do
MOST_ROOM = 2**30  # bytes allocated ahead by a solver that allocates its whole budget


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One contestant on one problem. What was not measured is None.

    Attributes:
        solver, family, method: the contestant's.
        error: why there is no answer.
        samples: in the batch.
        reached: samples whose residual, measured anew, is within the tolerance.
        wrong: samples that were called converged and are not.
        residual: largest relative residual over the samples.
        evals_mean, evals_max: evaluations that a sample took part in.
        calls: calls of f.
        f_samples: samples in those calls, summed.
        ops: ATen operations between two calls of f that compute or copy, the median.
        ops_mean: all of them in the solve, its beginning and end included, for each evaluation.
        ops_outside: those before the first call and after the last.
        reads: values that the host waited for, in the whole solve.
        bytes: peak allocated during the solve; the answer is part of it.
        ms: median milliseconds; None unless all samples reached the tolerance.
    """

    solver: str
    family: str
    method: str
    error: str | None = None
    samples: int
    reached: int = 0
    wrong: int = 0
    residual: float | None = None
    evals_mean: float | None = None
    evals_max: int | None = None
    calls: int | None = None
    f_samples: int | None = None
    ops: float | None = None
    ops_mean: float | None = None
    ops_outside: int | None = None
    reads: int | None = None
    bytes: int | None = None
    ms: float | None = None

    @property
    def all_reached(self) -> bool:
        """Did every sample reach the tolerance?"""
        return self.error is None and self.reached == self.samples


@dataclass(frozen=True, kw_only=True)
class Report:
    """One problem and all who tried it.

    Attributes:
        problem, kind: the problem's name and kind.
        batch: samples.
        entries: of one sample's state.
        state_bytes: of the whole state.
        f_ms: median milliseconds of f alone, on the whole batch.
        turns: of each contestant.
    """

    problem: str
    kind: str
    batch: int
    entries: int
    state_bytes: int
    f_ms: float | None
    turns: int
    measured: Sequence[Measured]

    def json(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Report:
        """From plain data."""
        return cls(**{**data, "measured": [Measured(**each) for each in data["measured"]]})

    def get(self, solver: str) -> Measured | None:
        """The contestant of that name."""
        return next((each for each in self.measured if each.solver == solver), None)

    def overhead(self, each: Measured) -> float | None:
        """time / (evaluations x time of f alone)."""
        if each.ms is None or not self.f_ms or not each.evals_max or not each.calls:
            return None
        return each.ms / (max(each.calls, each.evals_max) * self.f_ms)


def relative_residual(problem: Problem, value: Tensor) -> Tensor:
    """||f(z) - z|| / ||f(z)|| of each sample, inf where it is not a number."""
    image = problem.image(value)
    size = (image - value).flatten(1).norm(dim=1)
    relative = size / (image.flatten(1).norm(dim=1) + torch.finfo(size.dtype).tiny)
    return torch.where(torch.isfinite(relative), relative, torch.inf)


def judge(
    contestant: Contestant, problem: Problem, answer: Answer, calls: Calls, rtol: float
) -> Measured:
    """What an answer is worth, and what it took."""
    residual = relative_residual(problem, answer.value)
    within = residual <= SLACK * rtol
    wrong = 0
    if answer.status is not None:
        wrong = int(((answer.status == 0) & ~within).sum())
    evals = answer.evals
    return Measured(
        solver=contestant.name,
        family=contestant.family,
        method=contestant.method,
        samples=len(within),
        reached=int(within.sum()),
        wrong=wrong,
        residual=float(residual.max()),
        evals_mean=calls.calls if evals is None else float(evals.double().mean()),
        evals_max=calls.calls if evals is None else int(evals.max()),
        calls=calls.calls,
        f_samples=calls.samples,
    )


Say = Callable[[str], None]


def measure(
    problem: Problem,
    contestants: Sequence[Contestant],
    *,
    rtol: float,
    turns: int,
    say: Say = lambda text: None,
) -> Report:
    """Lets the contestants solve a problem.

    Args:
        contestants: who takes part.
        rtol: relative tolerance, the same for all.
        turns: solves by each contestant, at most; fewer where they take long. 0: nothing is timed,
            only counted.
        say: called with what is happening.
    """
    found: dict[str, Measured] = {}
    solves: dict[str, Callable[[Callable[..., Tensor]], Answer]] = {}
    took: dict[str, float] = {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a peer's; what it reached is measured
        for contestant in contestants:
            say(f"{problem.name}: {contestant.name}")
            name = contestant.name
            began = time.perf_counter()
            found[name], solves[name] = _first(contestant, problem, rtol)
            if found[name].all_reached:
                took[name] = time.perf_counter() - began
        for name in took:
            say(f"{problem.name}: {name}, counting")
            found[name] = _counted(found[name], solves[name], problem)
        turns, few = _turns(turns, took, found)
        times: dict[str, float] = {}
        if turns:
            say(f"{problem.name}: {turns} turns")
            times = _times(problem, {name: solves[name] for name in took}, turns, few)
    f_seconds = times.pop("", None)
    measured = [
        Measured(**{**asdict(each), "ms": 1e3 * times[each.solver]})
        if each.solver in times
        else each
        for each in found.values()
    ]
    return Report(
        problem=problem.name,
        kind=problem.kind,
        batch=len(problem.z0),
        entries=problem.z0[0].numel(),
        state_bytes=problem.z0.numel() * problem.z0.element_size(),
        f_ms=None if f_seconds is None else 1e3 * f_seconds,
        turns=turns,
        measured=measured,
    )


def _first(
    contestant: Contestant, problem: Problem, rtol: float
) -> tuple[Measured, Callable[[Callable[..., Tensor]], Answer]]:
    """The first solve: is the answer right? And how to repeat it."""
    budget = min(problem.max_evals, contestant.most or problem.max_evals)
    state = problem.z0.numel() * problem.z0.element_size()
    if contestant.allocates:
        budget = max(40, min(budget, MOST_ROOM // (contestant.allocates * state)))
    calls = Calls(problem.f, budget + 5)  # a solver may look at its start and its end besides
    try:
        answer = contestant.solve(problem, calls, rtol, budget)
    except Spent as error:
        found = _failed(contestant, problem, str(error), calls)
    except Exception as error:  # a peer's may be anything; it is reported as it is
        found = _failed(contestant, problem, f"{type(error).__name__}: {error}", calls)
    else:
        found = judge(contestant, problem, answer, calls, rtol)
    if contestant.pays_for_budget and found.all_reached:
        budget = min(budget, calls.calls + 2)  # given by hindsight just what it needs
    return found, lambda f: contestant.solve(problem, f, rtol, budget)


def _failed(contestant: Contestant, problem: Problem, error: str, calls: Calls) -> Measured:
    return Measured(
        solver=contestant.name,
        family=contestant.family,
        method=contestant.method,
        error=" ".join(error.split())[:200],
        samples=len(problem.z0),
        evals_mean=calls.calls,
        evals_max=calls.calls,
        calls=calls.calls,
        f_samples=calls.samples,
    )


def _counted(
    found: Measured, solve: Callable[[Callable[..., Tensor]], Answer], problem: Problem
) -> Measured:
    """With operations, reads and memory; SciPy computes where none of them can be seen."""
    if found.family == "scipy":
        return found
    seen: list[Counts] = []
    peak = clock.peak_bytes(
        lambda: seen.append(count(solve, problem.eager or problem.f)), problem.z0.device
    )
    counts = seen[0]
    # Products count as evaluations, and f sees nothing of them.
    evaluations = max(found.calls or 1, found.evals_max or 1)
    more = {
        "ops": counts.per_evaluation,
        "ops_mean": counts.total / evaluations,
        "ops_outside": counts.outside,
        "reads": counts.reads,
        "bytes": peak,
    }
    return Measured(**{**asdict(found), **more})


def _turns(
    turns: int, took: dict[str, float], found: dict[str, Measured]
) -> tuple[int, dict[str, int]]:
    """Turns that fit into the time for a problem, and who takes only a few of them."""
    few = {
        name: FEW if seconds < LONG else 1
        for name, seconds in took.items()
        if found[name].family == "scipy"
    }
    round_trip = sum(seconds for name, seconds in took.items() if name not in few)
    if turns and round_trip:
        fewest = FEWEST if round_trip < SECONDS / 2 else FEW
        turns = min(turns, max(fewest, int(SECONDS / round_trip)))
    return turns, few


def _times(
    problem: Problem,
    solves: dict[str, Callable[[Callable[..., Tensor]], Answer]],
    turns: int,
    few: dict[str, int],
) -> dict[str, float]:
    """Median seconds of each solve; under the name "", of f alone."""
    z = problem.z0 + 0.1
    device = z.device
    for _ in range(3):
        problem.image(z)
    once = clock.seconds(lambda: problem.image(z), device)
    repeats = max(1, min(100, int(5e-3 / max(once, 1e-7))))

    def f_alone() -> None:
        for _ in range(repeats):
            problem.image(z)

    calls: dict[str, Callable[[], object]] = {
        name: (lambda s=solve: s(problem.f)) for name, solve in solves.items()
    }
    times = clock.interleaved({**calls, "": f_alone}, device, turns=turns, few=few)
    times[""] /= repeats
    return times
