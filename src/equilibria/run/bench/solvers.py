"""The benchmark of forward solvers: one problem at a time, all contestants interleaved.

What a contestant claims is not believed: its answer is put into f, and every sample's residual
measured by one definition, ||f(z) - z|| / ||f(z)||. A contestant that left a sample above the
tolerance is marked with the share that it reached, and its time is not compared.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equilibria.run.bench.contestants import Answer, BenchedSolver
from equilibria.run.bench.count import Calls, Counts, Spent, count, fit_rounds, interleave, seconds
from equilibria.run.bench.problems import BenchProblem
from equilibria.run.memory import peak_bytes

SLACK = 1.01  # a residual on the tolerance is rounded otherwise when it is measured anew
SECONDS = 6.0  # for the rounds of one problem, where that leaves enough of them
FEWEST = 5  # rounds
FEW = 3  # rounds where one of all takes long, and of SciPy
LONG = 1.0  # seconds of a solve by SciPy over which one round must do
MAX_ROOM = 2**30  # bytes allocated ahead by a solver that allocates its whole budget

Row = dict[str, Any]
Solve = Callable[[Callable[..., Tensor]], Answer]


def measure(
    problem: BenchProblem, contestants: Sequence[BenchedSolver], *, rtol: float, rounds: int
) -> list[Row]:
    """Solve a problem with each contestant and return a row for each.

    What was not measured has no column: no time, operations or memory of a contestant that left a
    sample above the tolerance, no operations or memory of SciPy. The first row tells of the problem
    too.

    Args:
        problem: to solve.
        contestants: who takes part.
        rtol: relative tolerance, the same for all.
        rounds: solves by each contestant, at most; fewer where they take long. 0: nothing is timed,
            only counted.

    Returns:
        Of the problem: `kind`; `entries` of one sample's state; `state_bytes` of the whole state;
        `f_ms`, median milliseconds of f alone on the whole batch; `rounds`.

        Of each contestant: `solver`, `family`, `method`; `error`, why there is no answer;
        `samples` in the batch, `reached` of them within the tolerance, `wrong` that were called
        converged and are not; `residual`, the maximum over the samples; `evals`, the mean, and
        `evals_max`; `calls` of f, with `f_samples` samples in them; `ops`, ATen operations between
        two calls of f that compute or copy, the median; `ops_mean`, all of them in the solve for
        each evaluation; `ops_outside`, those before the first call and after the last; `reads`,
        values that the host waited for in the whole solve; `bytes`, the peak allocated during the
        solve, the answer included; `ms`, median milliseconds.
    """
    rows: dict[str, Row] = {}
    solves: dict[str, Solve] = {}
    took: dict[str, float] = {}
    few: dict[str, int] = {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a peer's; what it reached is measured
        for each in contestants:
            began = time.perf_counter()
            rows[each.name], solve = _first(each, problem, rtol)
            if rows[each.name]["reached"] == len(problem.z0):
                solves[each.name], took[each.name] = solve, time.perf_counter() - began
                if each.family == "scipy":  # whose operations nobody sees
                    few[each.name] = FEW if took[each.name] < LONG else 1
                else:
                    rows[each.name] |= _count_operations(rows[each.name], solve, problem)
        round_trip = sum(took[name] for name in took if name not in few)
        fewest = FEWEST if round_trip < SECONDS / 2 else FEW
        rounds = fit_rounds(rounds, SECONDS, round_trip, fewest)
        times = _times(problem, solves, rounds, few) if rounds else {}
    kind, f_ms = problem.name.removeprefix("large-").split("-")[0], times.pop("", None)
    for name, ms in times.items():
        rows[name]["ms"] = ms
    return add_sizes(rows, problem.z0, kind=kind, f_ms=f_ms, rounds=rounds)


def add_sizes(rows: Mapping[str, Row], state: Tensor, **figures: Any) -> list[Row]:
    """Return the rows, the first with the sizes of the state and with figures of the problem."""
    first, *others = rows.values()
    return [{**first, "entries": state[0].numel(), "state_bytes": state.nbytes, **figures}, *others]


def relative_residual(image: Tensor, value: Tensor) -> Tensor:
    """Return ||f(z) - z|| / ||f(z)|| of each sample, inf where it is not a number."""
    size = (image - value).flatten(1).norm(dim=1)
    relative = size / (image.flatten(1).norm(dim=1) + torch.finfo(size.dtype).tiny)
    return torch.where(torch.isfinite(relative), relative, torch.inf)


def describe_error(error: Exception) -> str:
    """Return an exception in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _first(contestant: BenchedSolver, problem: BenchProblem, rtol: float) -> tuple[Row, Solve]:
    """The first solve: is the answer right? And how to repeat it."""
    budget = min(problem.max_evals, contestant.max_evals or problem.max_evals)
    if contestant.allocates:
        room = MAX_ROOM // (contestant.allocates * problem.z0.nbytes)
        budget = max(40, min(budget, room))
    calls = Calls(problem.f, budget + 5)  # a solver may look at its start and its end besides
    row: Row = {
        "solver": contestant.name,
        "family": contestant.family,
        "method": contestant.method,
        "samples": len(problem.z0),
        "reached": 0,
        "wrong": 0,
    }
    try:
        answer = contestant.solve(problem, calls, rtol, budget)
    except Exception as error:  # a peer's may be anything; it is reported as it is
        row["error"] = str(error) if isinstance(error, Spent) else describe_error(error)
        evals = None
    else:
        residual, evals = relative_residual(problem.image(answer.value), answer.value), answer.evals
        within = residual <= SLACK * rtol
        row |= {"reached": int(within.sum()), "residual": float(residual.max())}
        if answer.status is not None:
            row["wrong"] = int(((answer.status == 0) & ~within).sum())
    evals = torch.tensor([calls.calls]) if evals is None else evals
    row |= {"evals": float(evals.double().mean()), "evals_max": int(evals.max())}
    row |= {"calls": calls.calls, "f_samples": calls.samples}
    if contestant.pays_for_budget and row["reached"] == len(problem.z0):
        budget = min(budget, calls.calls + 2)  # given by hindsight just what it needs
    return row, lambda f: contestant.solve(problem, f, rtol, budget)


def _count_operations(row: Row, solve: Solve, problem: BenchProblem) -> Row:
    """Operations, reads and memory of a solve."""
    seen: list[Counts] = []
    f = problem.eager or problem.f
    peak = peak_bytes(lambda: seen.append(count(solve, f)), problem.z0.device)
    (counts,) = seen
    # Products count as evaluations, and f sees nothing of them.
    return {
        "ops": counts.per_evaluation,
        "ops_mean": (counts.outside + sum(counts.between)) / max(1, row["calls"], row["evals_max"]),
        "ops_outside": counts.outside,
        "reads": counts.reads,
        "bytes": peak,
    }


def _times(
    problem: BenchProblem, solves: Mapping[str, Solve], rounds: int, few: Mapping[str, int]
) -> dict[str, float]:
    """Median milliseconds of each solve; under the name "", of f alone."""
    z = problem.z0 + 0.1
    for _ in range(3):
        problem.image(z)
    once = seconds(lambda: problem.image(z), z.device)
    repeats = max(1, min(100, int(5e-3 / max(once, 1e-7))))

    def f_alone() -> None:
        for _ in range(repeats):
            problem.image(z)

    calls = {name: functools.partial(solve, problem.f) for name, solve in solves.items()}
    times = interleave({**calls, "": f_alone}, z.device, rounds=rounds, few=few)
    times[""] /= repeats
    return {name: 1e3 * seconds for name, seconds in times.items()}
