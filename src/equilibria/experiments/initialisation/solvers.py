"""The paper's open question: what the ensemble does where the solver is not plain iteration."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from equilibria.bench.record import Table
from equilibria.experiments import measure
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.initialisation.wide import weight
from equilibria.experiments.initialisation.words import NAMES, PAPER
from equilibria.experiments.methods import WORDS, methods
from equilibria.experiments.published import AGARWALA_2022
from equilibria.nn.init import Ensemble
from equilibria.solve import (
    Solution,
    Solver,
    SolveWarning,
    Status,
    fixed_point,
)
from equilibria.stability import spectral_radius
from equilibria.theory import as_activation, critical_scale

__all__ = ["EXPERIMENT", "cases", "largest", "show"]

RTOL, EVALS = 1e-4, 100
SOLVERS = methods(RTOL, EVALS)
ENSEMBLES: Mapping[Ensemble, str] = {**PAPER, "antisymmetric": NAMES["antisymmetric"]}
ACTIVATIONS = ("hard-tanh", "tanh")

WIDTH, DRAWS, INPUTS = 500, 5, 16
SCALES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
SHARE = 0.9
"""A scale is workable where so many samples converge, at it and at all smaller ones."""

SAME = 1e-2
"""Relative distance within which two solutions are one."""


def cases(scale: Scale) -> Sequence[Case]:
    """Each activation and ensemble at all scales, with every solver."""
    used = [measure.described(solver) for solver in SOLVERS.values()]
    return [
        Case(
            key=_key(activation, ensemble),
            description=f"solves {DRAWS} {ensemble} networks with {activation} at {len(SCALES)} "
            f"scales, {len(SOLVERS)} solvers",
            minutes=1.0,
            run=partial(_solved, activation, ensemble),
            settings={
                "activation": activation,
                "ensemble": ensemble,
                "width": WIDTH,
                "draws": DRAWS,
                "inputs": INPUTS,
                "scales": SCALES,
                "solvers": used,
                "same": SAME,
            },
        )
        for activation in ACTIVATIONS
        for ensemble in ENSEMBLES
    ]


def _key(activation: str, ensemble: str) -> str:
    return f"solvers-{activation}-{ensemble}"


def _solved(activation: str, ensemble: Ensemble, place: Place) -> Mapping[str, Any]:
    phi = as_activation(activation)
    matrices = torch.stack([weight(ensemble, WIDTH, seed, torch.float32) for seed in range(DRAWS)])
    generator = torch.Generator().manual_seed(1000)
    count = DRAWS * INPUTS
    x = torch.randn(count, WIDTH, generator=generator)
    # Farther from the solution than the state's own length: another start finds another one.
    starts = {"zero": torch.zeros_like(x), "random": 2 * torch.randn(x.shape, generator=generator)}
    rows: list[dict[str, Any]] = []
    for scale in SCALES:
        transposed = scale * matrices.mT

        def f(z: Tensor, x: Tensor, transposed: Tensor = transposed) -> Tensor:
            return phi((z.unflatten(0, (DRAWS, INPUTS)) @ transposed).flatten(0, 1)) + x

        row: dict[str, Any] = {"scale": scale, "solvers": {}}
        for name, solver in SOLVERS.items():
            found = {start: _solve(f, z, x, solver) for start, z in starts.items()}
            row["solvers"][name] = _summary(f, x, found)
        rows.append(row)
    return {"rows": rows}


def _solve(f: Any, start: Tensor, x: Tensor, solver: Solver) -> Solution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)
        return fixed_point(f, start, x, solver=solver)


@torch.no_grad()
def _summary(f: Any, x: Tensor, found: Mapping[str, Solution]) -> dict[str, Any]:
    """How the solves from zero ended, whether another start agrees, how stable what is found is."""
    zero, random = found["zero"], found["random"]
    solved = zero.status == Status.CONVERGED
    evals = zero.stats.evals.double()
    both = solved & (random.status == Status.CONVERGED)
    distance = (zero.value - random.value).norm(dim=1) / zero.value.norm(dim=1)
    summary: dict[str, Any] = {
        "converged": solved.double().mean().item(),
        "converged_random": (random.status == Status.CONVERGED).double().mean().item(),
        "evals": evals[solved].median().item() if solved.any() else None,
        "residual": zero.stats.residual.double().median().item(),
        "both": both.double().mean().item(),
        "same": (distance[both] < SAME).double().mean().item() if both.any() else None,
        "radius": None,
        "unstable": None,
    }
    if solved.any():
        radius = spectral_radius(f, zero.value, x)[solved].double()
        summary["radius"] = radius.median().item()
        summary["unstable"] = (radius > 1).double().mean().item()
    return summary


# --- what is shown -------------------------------------------------------------------------------


@lru_cache
def _predicted(activation: str, ensemble: Ensemble) -> float:
    return critical_scale(activation, ensemble, tolerance=1e-3)


def _rows(done: Results, activation: str, ensemble: str) -> list[dict[str, Any]]:
    found = done.get(_key(activation, ensemble))
    return [] if found is None else list(found.value["rows"])


def largest(rows: Sequence[Mapping[str, Any]], solver: str) -> float | None:
    """Return the largest scale up to which at least 90 % of the samples converge.

    Args:
        rows: of a case, scales ascending.
        solver: key of the solver.

    Returns:
        None where not even the smallest scale is workable.
    """
    found: float | None = None
    for row in rows:
        if row["solvers"][solver]["converged"] < SHARE:
            break
        found = row["scale"]
    return found


def show(done: Results) -> Page:
    """Workable scales of each ensemble and solver, and why they end where they do."""
    return Page(
        [_workable(done), _beyond(done), _reasons(done)],
        [_panel(done, activation, each) for activation in ACTIVATIONS for each in ENSEMBLES],
    )


def _workable(done: Results) -> Table:
    rows: list[list[Any]] = []
    for activation in ACTIVATIONS:
        for ensemble, words in ENSEMBLES.items():
            known = _rows(done, activation, ensemble)
            predicted = _predicted(activation, ensemble)
            row: list[Any] = [activation, words, predicted]
            for solver in SOLVERS:
                scale = largest(known, solver)
                ratio = None if scale is None else scale / predicted
                row += [NOT_RUN, None] if not known else [scale, ratio]
            rows.append(row)
    return Table(
        title=f"Largest scale up to which {100 * SHARE:.0f} % converge",
        columns=[
            *("activation", "ensemble", "sqrt(V*) predicted"),
            *(f"{words}: {what}" for words in WORDS.values() for what in ("sqrt(V)", "ratio")),
        ],
        rows=rows,
        note=_how() + f" Scales that were tried: {', '.join(f'{s:g}' for s in SCALES)}. The "
        "prediction is of plain iteration in the limit of many units and evaluations. An "
        "evaluation of Newton-Krylov is one of f; its Jacobian products are counted as well.",
    )


def _beyond(done: Results) -> Table:
    rows: list[list[Any]] = []
    for activation in ACTIVATIONS:
        for ensemble, words in ENSEMBLES.items():
            predicted = _predicted(activation, ensemble)
            known = _rows(done, activation, ensemble)
            above = [row["solvers"] for row in known if row["scale"] > predicted]
            row: list[Any] = [activation, words]
            none = None if known else NOT_RUN  # measured, at no scale above the predicted one
            for solver in SOLVERS:
                shares = [100 * each[solver]["converged"] for each in above]
                radii = [each[solver]["radius"] for each in above]
                found = [radius for radius in radii if radius is not None]
                row += [
                    statistics.fmean(shares) if shares else none,
                    statistics.median(found) if found else None,
                ]
            rows.append(row)
    return Table(
        title="At the scales above the predicted one",
        columns=[
            *("activation", "ensemble"),
            *(
                f"{words}: {what}"
                for words in WORDS.values()
                for what in ("converged, %", "radius at z*")
            ),
        ],
        rows=rows,
        note=_how() + " Mean of the shares at these scales, median of the radii of what was found: "
        "above 1, the fixed point is there and plain iteration leaves it.",
    )


def _how() -> str:
    return (
        f"z = phi(W z) + x, N = {WIDTH}, float32, {DRAWS} draws of W x {INPUTS} standard Gaussian "
        f"inputs, from z = 0; converged: relative residual {RTOL:g} within {EVALS} evaluations."
    )


def _reasons(done: Results) -> Table:
    rows: list[list[Any]] = []
    for activation in ACTIVATIONS:
        for ensemble, words in ENSEMBLES.items():
            for row in _rows(done, activation, ensemble):
                for solver, name in WORDS.items():
                    value = row["solvers"][solver]
                    rows.append(
                        [
                            activation,
                            words,
                            row["scale"],
                            name,
                            100 * value["converged"],
                            value["evals"],
                            value["residual"],
                            value["radius"],
                            _percent(value["unstable"]),
                            100 * value["both"],
                            _percent(value["same"]),
                        ]
                    )
    return Table(
        title="What is found, and whether it is stable and alone",
        columns=[
            "activation",
            "ensemble",
            "sqrt(V)",
            "solver",
            "converged, %",
            "median evaluations",
            "median residual",
            "radius at z*",
            "unstable, %",
            "converged from both starts, %",
            "of them to one solution, %",
        ],
        rows=rows,
        note=_how() + " The radius of the Jacobian (power iteration) and the share above 1 are of "
        "the samples that converged; evaluations too. The second start is Gaussian of standard "
        f"deviation 2; one solution: within {SAME:g} of its length.",
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _panel(done: Results, activation: str, ensemble: Ensemble) -> Panel:
    rows = _rows(done, activation, ensemble)
    title = f"{activation}, {ENSEMBLES[ensemble]}"
    first = (activation, ensemble) == (ACTIVATIONS[0], next(iter(ENSEMBLES)))  # has the legend
    series: list[Series] = []
    if rows:
        series = [
            Series(
                label=words if first else "",
                x=[row["scale"] for row in rows],
                y=[100 * row["solvers"][solver]["converged"] for row in rows],
                colour=colour,
                style="marked",
            )
            for colour, (solver, words) in enumerate(WORDS.items())
        ]
        predicted = _predicted(activation, ensemble)
        if math.isfinite(predicted):
            series.append(
                Series(
                    label="sqrt(V*) predicted" if first else "",
                    x=[predicted, predicted],
                    y=[0, 100],
                    colour=7,
                    style="dashed",
                )
            )
    return Panel(
        title=title,
        x="sqrt(V)",
        y="converged, %",
        series=series,
        span_y=(-5, 105),
    )


EXPERIMENT = Experiment(
    name="initialisation/solvers",
    paper=AGARWALA_2022,
    subject="open question of section 5",
    description="Plain iteration, alternating Anderson, Broyden and Newton on four ensembles.",
    cases=cases,
    show=show,
)
