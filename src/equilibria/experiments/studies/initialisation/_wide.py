"""Wide non-linear networks iterated at many scales: the rows that Figures 2, 3 and 4 share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from equilibria.experiments.data import Data, Frame
from equilibria.experiments.studies.initialisation._ensembles import PAPER
from equilibria.experiments.study import Context, Point, Scale
from equilibria.nn.init import Ensemble, fill
from equilibria.theory import (
    MeanField,
    NoMeanFieldError,
    as_activation,
    critical_scale,
    mean_field,
)

__all__ = ["iterated", "points", "weight"]

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
            factors={"ensemble": ensemble},
            measures=[partial(iterated, **sizes, decomposed=DECOMPOSED[ensemble])],
            settings={"activation": ACTIVATION, "settled": SETTLED},
            minutes=0.7,
        )
        for ensemble in PAPER
    ]


def iterated(
    context: Context, *, width: int, draws: int, inputs: int, steps: int, scales: Sequence[float],
    decomposed: int,
) -> Iterator[dict[str, float]]:  # fmt: skip
    """One row for each `scale` and each draw whose spectral `radius` is computed.

    The first of a scale has the means over all samples: `length` h.h / N, `residual`, the length
    of the last step, and `converged`, the share whose last step is below `SETTLED` times |h|.
    """
    ensemble: Any = context.factors["ensemble"]
    weights = [weight(ensemble, width, seed) for seed in range(draws)]
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
        for w, (h, _) in list(zip(weights, found, strict=True))[:decomposed]:
            yield row | {"radius": _radius(ensemble, scale * w, h[:, 0])}
            row = {"scale": scale}


def weight(ensemble: Ensemble, width: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return one member of an ensemble at scale 1, (width, width)."""
    whole = torch.empty(width, width, dtype=dtype)
    fill(whole, ensemble, generator=torch.Generator().manual_seed(seed))
    return whole


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


def predicted(
    column: str, **theories: Callable[[Ensemble, float], float | None]
) -> Callable[[Data], Frame]:
    """Add what theories say of a row's ensemble and scale, and the deviation `off_...` in %."""

    def derive(data: Data) -> Frame:
        rows = data.series("scale")
        for name, theory in theories.items() if column in rows else ():
            limits = map(theory, rows["ensemble"], rows["scale"])
            rows = rows.assign(**{name: pd.Series(limits, rows.index, dtype=float)})
            rows[f"off_{name}"] = 100 * (rows[column] / rows[name] - 1)
        return rows

    return derive
