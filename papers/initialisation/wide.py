"""Wide non-linear networks at many scales: iterated, for Figures 2, 3 and 4, or solved."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from equilibria.nn.init import Ensemble
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Context, Point, Scale
from equilibria.run.studies.views import Pivot
from equilibria.solve import Solution, Solver, SolveWarning, Status, fixed_point
from equilibria.stability import spectral_radius
from equilibria.theory import MeanField, NoMeanFieldError, as_activation, critical_scale, mean_field
from papers.initialisation.common import PAPER, weight

ACTIVATION = "hard-tanh"
WIDTH, DRAWS, INPUTS, STEPS = 1000, 3, 8, 200
SCALES = (0.2, 0.4, *(round(0.1 * tenth, 1) for tenth in range(6, 23)), 2.5, 3.0, 3.5, 4.0)
DECOMPOSED = {"gaussian": 1, "orthogonal": 1, "goe": 3}
"""Draws whose eigenvalues are computed, seconds each where W is not symmetric."""

SETTLED = 1e-4
"""Of ||h_{t+1} - h_t|| / ||h_t||: the iteration counts as converged below it."""

LINES = tuple(round(0.1 * tenth, 1) for tenth in range(1, 41))
"""Scales at which theory is drawn."""

AVERAGED = (
    f"N = {WIDTH}, float64, {STEPS} steps of z -> hard-tanh(W z) + x from 0, standard Gaussian "
    f"inputs; {DRAWS} draws of W x {INPUTS} inputs ({DRAWS * INPUTS} samples; the paper has 1000)"
)


def points(scale: Scale) -> list[Point]:
    """One point for each ensemble, iterated at all scales."""
    sizes = {"width": WIDTH, "draws": DRAWS, "inputs": INPUTS, "steps": STEPS, "scales": SCALES}
    return [
        Point(
            {"ensemble": ensemble},
            [partial(iterate, **sizes)],
            settings={"activation": ACTIVATION, "settled": SETTLED, "decomposed": DECOMPOSED},
            minutes=0.7,
        )
        for ensemble in PAPER
    ]


@identified_as("_wide.iterated")
def iterate(
    context: Context, *, width: int, draws: int, inputs: int, steps: int, scales: Sequence[float]
) -> Iterator[dict[str, float]]:
    """One row for each `scale` and each draw whose spectral `radius` is computed.

    The first of a scale has the means over all samples: `length` h.h / N, `residual`, the length
    of the last step, and `converged`, the share whose last step is below `SETTLED` times |h|.
    """
    ensemble: Any = context.factors["ensemble"]
    weights = [weight(ensemble, width, torch.Generator().manual_seed(k)) for k in range(draws)]
    generator = torch.Generator().manual_seed(1000)
    x = torch.randn(draws, width, inputs, generator=generator, dtype=torch.float64)
    for scale in scales:
        found = [_last(scale * w, inputs, steps) for w, inputs in zip(weights, x, strict=True)]
        lengths = torch.cat([h.square().mean(0) for h, _ in found])
        residuals = torch.cat([residual for _, residual in found])
        relative = residuals / (width * lengths).sqrt().clamp(min=1e-300)
        row = {
            "scale": scale,
            "length": float(lengths.mean()),
            "residual": float(residuals.mean()),
            "converged": float((relative < SETTLED).double().mean()),
        }
        for w, (h, _) in list(zip(weights, found, strict=True))[: DECOMPOSED[ensemble]]:
            yield row | {"radius": _radius(ensemble, scale * w, h[:, 0])}
            row = {"scale": scale}


def _last(w: Tensor, x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """h after the steps, (width, inputs), and the length of its last step, (inputs,)."""
    phi = as_activation(ACTIVATION)
    new = w @ x
    h = torch.full_like(new, torch.inf)
    for _ in range(steps):
        h, new = new, w @ (phi(new) + x)
        if float((new - h).norm(dim=0).max()) < 1e-12:
            break
    return new, (new - h).norm(dim=0)


def _radius(ensemble: Ensemble, w: Tensor, h: Tensor) -> float:
    """Largest modulus of the eigenvalues of W diag(phi'(h)).

    Slopes of 0 leave columns of zeros: other eigenvalues are those of the block of units whose
    slope is 1, an exact shortcut.
    """
    on = as_activation(ACTIVATION).slope(h) > 0
    block = w[on][:, on]
    if not len(block):
        return 0.0
    values = torch.linalg.eigvalsh(block) if ensemble == "goe" else torch.linalg.eigvals(block)
    return float(values.abs().max())


# --- solved ---------------------------------------------------------------------------------------

SAME = 1e-2
"""Relative distance within which two solutions are one."""


@identified_as("_wide.solved")
def solve(
    context: Context, *, solvers: Mapping[str, Solver], width: int, draws: int, inputs: int,
    scales: Sequence[float],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One row for each `scale` and `solver`, as `_summary` gives it."""
    factors: Any = context.factors
    phi = as_activation(factors["activation"])
    drawn = [
        weight(factors["ensemble"], width, torch.Generator().manual_seed(k), dtype=torch.float32)
        for k in range(draws)
    ]
    generator = torch.Generator().manual_seed(1000)
    x = torch.randn(draws * inputs, width, generator=generator)
    # Farther from the solution than the state's own length: another start finds another one.
    starts = (torch.zeros_like(x), 2 * torch.randn(x.shape, generator=generator))
    for scale in scales:
        scaled = scale * torch.stack(drawn).mT

        def f(z: Tensor, x: Tensor, w: Tensor = scaled) -> Tensor:
            return phi((z.unflatten(0, (draws, inputs)) @ w).flatten(0, 1)) + x

        for name, solver in solvers.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SolveWarning)
                found = [fixed_point(f, start, x, solver=solver) for start in starts]
            yield {"scale": scale, "solver": name, **_summary(f, x, *found)}


@torch.no_grad()
def _summary(f: Any, x: Tensor, zero: Solution, random: Solution) -> dict[str, Any]:
    """How the solves from zero ended, whether another start agrees, how stable what is found is.

    `converged`, `both` starts converged, `same`: of these, with one solution (shares); `evals`,
    `residual`, `radius` (medians) and `unstable`, the share of radii above 1.
    """
    solved, again = (each.status == Status.CONVERGED for each in (zero, random))
    both = solved & again
    distance = (zero.value - random.value).norm(dim=1) / zero.value.norm(dim=1)
    row = {
        "converged": solved.double().mean().item(),
        "residual": zero.stats.residual.double().median().item(),
        "both": both.double().mean().item(),
        "same": (distance[both] < SAME).double().mean().item(),  # NaN of none
    }
    if solved.any():
        radius = spectral_radius(f, zero.value, x)[solved].double()
        row["evals"] = zero.stats.evals[solved].double().median().item()
        row["radius"] = radius.median().item()
        row["unstable"] = (radius > 1).double().mean().item()
    return row


# --- theory ---------------------------------------------------------------------------------------


@cache
def field(ensemble: Ensemble, scale: float, *, reaction: bool = True) -> MeanField | None:
    """Return the law of h at a scale; None where its equations have no solution."""
    try:
        return mean_field(ACTIVATION, ensemble, scale**2, reaction=reaction)
    except NoMeanFieldError:
        return None


@cache
def critical(ensemble: Ensemble, *, reaction: bool = True) -> float:
    """Return sqrt(V*) at which the spectral radius is predicted to be 1."""
    return critical_scale(ACTIVATION, ensemble, reaction=reaction, tolerance=1e-4)


def add_predictions(column: str, theory: Callable[..., float | None]) -> Callable[[Data], Frame]:
    """Add what theory says of a row's ensemble and scale, and the deviations `off_...` in %.

    `plain` is the paper's theory, `cavity` that with the reaction of symmetric weights.
    """

    def derive(data: Data) -> Frame:
        rows = data.series("scale")
        for name, reaction in (("plain", False), ("cavity", True)) if column in rows else ():
            limits = map(partial(theory, reaction=reaction), rows["ensemble"], rows["scale"])
            rows = rows.assign(**{name: pd.Series(limits, rows.index, dtype=float)})
            rows[f"off_{name}"] = 100 * (rows[column] / rows[name] - 1)
        return rows

    return derive


table = partial(
    Pivot,
    index={"ensemble": "ensemble", "scale": "sqrt(V)"},
    each="scale",
    words={"ensemble": PAPER},
)
"""A row for each ensemble and scale."""
