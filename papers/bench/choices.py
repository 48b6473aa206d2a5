"""Evaluations, accelerated samples and milliseconds of a solve by Auto(), beside the best of three
other solvers by hindsight."""

import statistics
import time
import warnings
from dataclasses import replace
from typing import Any

import torch

from equilibria.run.bench.count import seconds
from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Pivot, first
from equilibria.solve import Anderson, Auto, Broyden, Picard, Solution, Solver, Status, fixed_point
from papers.bench.cells import Case, large, small

RTOL, MOST, SECONDS = 1e-4, 200, 2.0
SOLVERS: dict[str, Solver] = {
    "Auto": Auto(),
    "Picard": Picard(),
    "Anderson": Anderson(),
    "Broyden": Broyden(),
}


def cases() -> dict[str, Case]:
    return small() | large()


def solve(case: Case, solver: Solver, rtol: float = RTOL) -> Solution:
    limited = replace(solver, rtol=rtol, max_evals=MOST)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fixed_point(case.cell, case.z0, case.x, solver=limited, coupled=case.coupled)


def choices(context: Context) -> dict[str, Any]:
    """Evaluations of each solver where all samples converge; what `Auto` accelerated, and from
    which evaluation; and medians of milliseconds, in turns."""
    device = torch.device(context.device)
    case = cases()[str(context.factors["layer"])].to(device)
    row: dict[str, Any] = {}
    found = {name: solve(case, solver) for name, solver in SOLVERS.items()}
    solved = {name for name, sol in found.items() if bool((sol.status == Status.CONVERGED).all())}
    for name in solved:
        row[f"evals {name}"] = float(found[name].stats.evals.double().mean())
    phases = found["Auto"].stats.choices
    assert phases is not None
    accelerated = phases[:, 1] > 0
    row["share"] = float(accelerated.double().mean())
    if bool(accelerated.any()):
        row["from"] = float(phases[accelerated, 0].double().mean())
    took: dict[str, list[float]] = {name: [] for name in sorted(solved)}
    begin = time.perf_counter()
    while solved and time.perf_counter() - begin < SECONDS * len(solved):
        for name, times in took.items():
            times.append(1e3 * seconds(lambda name=name: solve(case, SOLVERS[name]), device))
    return row | {f"ms {name}": statistics.median(times) for name, times in took.items()}


def best(prefix: str, digits: int) -> Any:
    """The best of the other solvers by hindsight, with its name."""

    def cell(rows: Frame) -> str | None:
        others = {
            name: value
            for name in SOLVERS
            if name != "Auto" and (value := number(rows, f"{prefix} {name}")) is not None
        }
        if not others:
            return None
        name = min(others, key=lambda each: others[each])
        return f"{others[name]:.{digits}f} ({name})"

    return cell


def number(rows: Frame, column: str) -> float | None:
    value = first(column)(rows) if column in rows else None
    return None if value is None else float(value)


STUDY = Study(
    title="What the default chooses",
    points=lambda scale: [
        Point(
            {"layer": name},
            [choices],
            settings={"rtol": RTOL, "max_evals": MOST, "seconds": SECONDS},
        )
        for name in cases()
    ],
    views=[
        Pivot(
            title="What the default chooses",
            index={"layer": "layer"},
            values={
                "evaluations": "evals Auto",
                "accelerated, share of samples": "share",
                "from evaluation": "from",
                "ms": "ms Auto",
                "evaluations, best of three": best("evals", 1),
                "ms, best of three": best("ms", 2),
            },
            note=f"Solves at random weights, rtol {RTOL:g}; means over the samples, medians "
            "of interleaved times. The three are Picard, Anderson and Broyden with their defaults. "
            "A solver is left out where a sample does not converge within "
            f"{MOST} evaluations; the multiscale cell has no equilibrium that any of them finds.",
        )
    ],
)
