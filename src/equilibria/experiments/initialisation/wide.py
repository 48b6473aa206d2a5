"""Wide non-linear networks iterated at many scales: what Figures 2, 3 and 4 all show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Series
from equilibria.experiments.initialisation.words import COLOURS, PAPER
from equilibria.nn.init import Ensemble, fill
from equilibria.theory import (
    MeanField,
    NoMeanFieldError,
    as_activation,
    critical_scale,
    mean_field,
    radius_at,
)

__all__ = [
    "ACTIVATION",
    "AVERAGED",
    "LINES",
    "curves",
    "mean_radius",
    "measured",
    "predicted_scale",
    "solved",
    "stopped_at",
    "sweep",
    "weight",
]

Row = Mapping[str, Any]
"""What was measured of an ensemble at a scale."""

ACTIVATION = "hard-tanh"

WIDTH, DRAWS, INPUTS, STEPS = 1000, 3, 8, 200
SCALES = (
    *(0.2, 0.4),
    *(round(0.1 * tenth, 1) for tenth in range(6, 23)),
    *(2.5, 3.0, 3.5, 4.0),
)
DECOMPOSED: Mapping[Ensemble, int] = {"gaussian": 1, "orthogonal": 1, "goe": 3}
"""Draws whose eigenvalues are computed, seconds each where W is not symmetric."""

SETTLED = 1e-4
"""Of ||h_{t+1} - h_t|| / ||h_t||: the iteration counts as converged below it."""

LINES = tuple(round(0.05 * step, 2) for step in range(1, 81))
"""Scales at which theory is drawn."""

AVERAGED = (
    f"N = {WIDTH}, float64, {STEPS} steps of z -> hard-tanh(W z) + x from 0, standard Gaussian "
    f"inputs; {DRAWS} draws of W x {INPUTS} inputs ({DRAWS * INPUTS} samples; the paper has 1000)"
)


def weight(ensemble: Ensemble, width: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return one member of an ensemble at scale 1, (width, width)."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.empty(width, width, dtype=dtype)
    fill(whole, ensemble, 1.0, generator=generator)
    return whole


def sweep(ensemble: Ensemble) -> Case:
    """Return the case that iterates one ensemble at all scales; Figures 2, 3 and 4 share it."""
    return Case(
        key=f"initialisation-wide-{ensemble}",
        description=f"iterates {DRAWS} networks of {WIDTH} units, {ensemble} weights, at "
        f"{len(SCALES)} scales",
        minutes=0.7,
        run=partial(_swept, ensemble),
        settings={
            "ensemble": ensemble,
            "activation": ACTIVATION,
            "width": WIDTH,
            "draws": DRAWS,
            "inputs": INPUTS,
            "steps": STEPS,
            "scales": SCALES,
            "settled": SETTLED,
            "decomposed": DECOMPOSED[ensemble],
        },
        shared=True,
    )


def _swept(ensemble: Ensemble, place: Place) -> Mapping[str, Any]:
    weights = [weight(ensemble, WIDTH, seed) for seed in range(DRAWS)]
    generator = torch.Generator().manual_seed(1000)
    inputs = torch.randn(DRAWS, WIDTH, INPUTS, generator=generator, dtype=torch.float64)
    rows: list[dict[str, Any]] = []
    for scale in SCALES:
        found = [_iterated(W, scale, x) for W, x in zip(weights, inputs, strict=True)]
        lengths = torch.cat([h.square().mean(0) for h, _ in found])
        residuals = torch.cat([residual for _, residual in found])
        relative = residuals / (WIDTH * lengths).sqrt().clamp(min=1e-300)
        rows.append(
            {
                "scale": scale,
                "length": lengths.mean().item(),
                "length_spread": lengths.std().item(),
                "residual": residuals.mean().item(),
                "residual_median": residuals.median().item(),
                "settled": (relative < SETTLED).double().mean().item(),
                "radius": [
                    _radius(ensemble, scale * W, h[:, 0])
                    for W, (h, _) in list(zip(weights, found, strict=True))[: DECOMPOSED[ensemble]]
                ],
            }
        )
    return {"rows": rows}


def _iterated(W: Tensor, scale: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """h after the steps, (width, inputs), and the length of its last step, (inputs,)."""
    phi = as_activation(ACTIVATION)
    scaled = scale * W
    h = scaled @ x
    change = torch.full_like(x[0], math.inf)
    for _ in range(STEPS):
        new = scaled @ (phi(h) + x)
        change = (new - h).norm(dim=0)
        h = new
        if float(change.max()) < 1e-12:
            break
    return h, change


def _radius(ensemble: Ensemble, W: Tensor, h: Tensor) -> float:
    """Largest modulus of the eigenvalues of W diag(phi'(h)).

    Slopes of 0 leave columns of zeros: other eigenvalues are those of the block of units whose
    slope is 1, an exact shortcut.
    """
    on = as_activation(ACTIVATION).slope(h) > 0
    block = W[on][:, on]
    if not len(block):
        return 0.0
    values = torch.linalg.eigvalsh(block) if ensemble == "goe" else torch.linalg.eigvals(block)
    return float(values.abs().max())


# --- what theory says ----------------------------------------------------------------------------


@lru_cache
def solved(ensemble: Ensemble, scale: float, *, reaction: bool = True) -> MeanField | None:
    """Return the mean field at a scale, None where there is none.

    Args:
        ensemble: of W.
        scale: sqrt(V).
        reaction: False for the paper's own theory of GOE.
    """
    if ensemble == "goe" and reaction and scale >= predicted_scale(ensemble):
        return None
    try:
        found = mean_field(ACTIVATION, ensemble, scale**2, reaction=reaction)
        radius_at(found)
    except NoMeanFieldError:
        return None
    return found


@lru_cache
def predicted_scale(ensemble: Ensemble, *, reaction: bool = True) -> float:
    """Return sqrt(V*) at which the spectral radius is predicted to be 1."""
    return critical_scale(ACTIVATION, ensemble, reaction=reaction, tolerance=1e-4)


def stopped_at(scales: Sequence[float], shares: Sequence[float]) -> float | None:
    """Return the first scale at which the share of what converges falls to a half.

    Args:
        scales: ascending.
        shares: of samples that converged at each.

    Returns:
        Interpolated between scales; None where more than half converge at all of them.
    """
    for place, share in enumerate(shares):
        if share <= 0.5:
            if place == 0:
                return scales[0]
            before = shares[place - 1]
            part = (before - 0.5) / (before - share)
            return scales[place - 1] + part * (scales[place] - scales[place - 1])
    return None


def measured(done: Results, ensemble: Ensemble) -> list[dict[str, Any]]:
    """The rows of an ensemble's sweep; none where it was not run."""
    found = done.get(f"initialisation-wide-{ensemble}")
    return [] if found is None else list(found.value["rows"])


def curves(
    done: Results,
    x: Callable[[Ensemble, Row], float | None],
    y: Callable[[Row], float],
    style: Literal["marked", "points"] = "marked",
) -> list[Series]:
    """A series for each ensemble whose sweep was run.

    Args:
        done: finished cases.
        x, y: where a row of a sweep stands.
        style: of the series.
    """
    return [
        Series(
            label=words,
            x=[x(ensemble, row) for row in rows],
            y=[y(row) for row in rows],
            colour=COLOURS[ensemble],
            style=style,
        )
        for ensemble, words in PAPER.items()
        if (rows := measured(done, ensemble))
    ]


def mean_radius(row: Mapping[str, Any]) -> float:
    """Mean over draws of the largest eigenvalue's modulus."""
    return statistics.fmean(row["radius"])
