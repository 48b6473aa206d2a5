"""How a network begins, measured: Monte Carlo probes of the quantities that theory predicts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.nn.init import recurrent_weights
from equilibria.stability.applied import Mapped, applied, mapped
from equilibria.stability.estimate import Estimate, resolvent_traces
from equilibria.stability.jacobian import spectral_radius
from equilibria.stability.patient import Patient
from equilibria.stability.settled import Settled, as_it_is, copied, settle, unsettled
from equilibria.stability.trees import rows_of

__all__ = ["StartProbe", "StepResidual", "probe_start"]


@dataclass(frozen=True)
class StepResidual:
    """How far z_t is from being a fixed point, after t plain iterations from the layer's start.

    Attributes:
        step: t.
        relative: median over the samples of ||f(z_t) - z_t|| / ||f(z_t)||; infinite where z_t is
            not finite.
        absolute: median of the root mean square of the entries of f(z_t) - z_t.
    """

    step: int
    relative: float
    absolute: float


@dataclass(frozen=True)
class StartProbe:
    """What `probe_start` measured.

    Attributes:
        samples: of the batch.
        solved: samples whose fixed point was found. All that follows but `residuals` is of these.
        state: mean square of the entries of z*, z*.z* / N.
        weights: what each recurrent weight gives at z*.
        radii: spectral radius of df/dz at z* of each sample; NaN where z* was not found.
        residuals: of plain iteration, of all samples.
        second_moment: tr[M^T M], M = (I - df/dz)^-1 and tr the mean eigenvalue: of a linear network
            E[z*.z*] / (x.x).
        length_variance: 2 tr[(M^T M)^2], of a linear network N times the variance of z*.z* / N over
            inputs of variance 1. None, as the one before, where there are no probes.
    """

    samples: int
    solved: int
    state: float
    weights: tuple[Mapped, ...]
    radii: tuple[float, ...]
    residuals: tuple[StepResidual, ...]
    second_moment: Estimate | None
    length_variance: Estimate | None

    @property
    def radius(self) -> float:
        """The largest spectral radius; NaN where no sample was solved."""
        return max((r for r in self.radii if not math.isnan(r)), default=math.nan)

    def numbers(self) -> dict[str, float]:
        """Return all that is one number, by its name."""
        values = {"solved": self.solved / self.samples, "state": self.state, "radius": self.radius}
        values |= {f"weights/{row.path}": row.mean_square for row in self.weights}
        for row in self.residuals:
            values[f"relative residual/{row.step}"] = row.relative
            values[f"absolute residual/{row.step}"] = row.absolute
        for name in ("second_moment", "length_variance"):
            if (estimate := getattr(self, name)) is not None:
                values[name] = estimate.value
        return values

    def json(self) -> str:
        """Return it as JSON; what is not a finite number is null."""
        return json.dumps(_finite(asdict(self)), indent=2)

    def __str__(self) -> str:
        lines = [
            f"fixed points found: {self.solved} of {self.samples} samples",
            f"z*.z*/N {self.state:.4g}, spectral radius {self.radius:.3f} (the largest)",
        ]
        lines += [f"h*.h*/N {row.mean_square:.4g} from {row.path}" for row in self.weights]
        lines += [
            f"after {row.step} plain iterations: residual {row.relative:.2e} relative, "
            f"{row.absolute:.2e} absolute"
            for row in self.residuals
        ]
        if self.second_moment is not None:
            lines.append(f"tr[M^T M] {self.second_moment}")
        if self.length_variance is not None:
            lines.append(f"length variance 2 tr[(M^T M)^2] {self.length_variance}")
        return "\n".join(lines)


def probe_start(
    model: nn.Module,
    *inputs: Any,
    steps: Sequence[int] = (1, 2, 5, 10, 20, 50),
    probes: int = 8,
    rtol: float = 1e-5,
    seed: int = 0,
) -> StartProbe:
    """Measures on one batch what the theory of initialisation predicts.

    Everything is measured on a copy in eval mode, in the weights' own precision where autocast is
    on, and in inference mode as without; the model, its modes and torch's random state stay as they
    are. The cost is a solve, 40 products for the spectral radius, max(steps)
    evaluations, and for each probe some tens of products a sample, more near instability.

    Args:
        model: a `DEQ`, or a module that holds one and calls it once.
        *inputs: what it is called with.
        steps: numbers of plain iterations after which the residual is measured; none are made for
            an empty one.
        probes: random vectors for the traces of the resolvent; 0 for none of them.
        rtol: relative residual at which a fixed point counts as found and a linear system as
            solved.
        seed: of the probes.

    Returns:
        The numbers. `print` it, or store `json()`.

    Raises:
        ValueError: no equilibrium layer or several; steps or probes are negative.

    Example:
        >>> probe = eq.stability.probe_start(model, x)
        >>> probe.radius, probe.length_variance

    papers: Agarwala and Schoenholz 2022, sec. 2.2 and 3.3 (the measurements of figures 1 to 4).
    """
    if probes < 0 or any(step < 0 for step in steps):
        raise ValueError(f"probes and steps must not be negative; got {probes} and {tuple(steps)}")
    with as_it_is(model):
        patient = copied(model, inputs)
        residuals = _iterated(patient, sorted(set(steps)))
        settled = settle(patient, rtol)
        samples, solved = settled.solved.numel(), int(settled.solved.sum())
        nothing = Estimate(math.nan, math.nan, 0) if probes else None
        if not solved:
            radii = (math.nan,) * samples
            return StartProbe(samples, 0, math.nan, (), radii, residuals, nothing, nothing)
        layer = settled.layer
        radii = spectral_radius(layer.cell, settled.z, *settled.operands, coupled=layer.coupled)
        second, fourth = nothing, nothing
        if probes:
            device = pytree.tree_leaves(settled.z)[0].device
            generator = torch.Generator(device).manual_seed(seed)
            second, fourth = resolvent_traces(settled, probes, rtol, generator)
        return StartProbe(
            samples=samples,
            solved=solved,
            state=float(rows_of(settled.z, layer.coupled).square().mean()),
            weights=_weights(patient, settled),
            radii=tuple(settled.spread(radii).tolist()),
            residuals=residuals,
            second_moment=second,
            length_variance=fourth,
        )


def _weights(patient: Patient, settled: Settled) -> tuple[Mapped, ...]:
    """What the recurrent weights give, of a cell that has such."""
    try:
        weights = recurrent_weights(patient.module)
    except ValueError:
        return ()
    used = applied(weights, settled)
    return mapped([w for w, use in zip(weights, used, strict=True) if use], settled)


def _iterated(patient: Patient, steps: Sequence[int]) -> tuple[StepResidual, ...]:
    """Plain iterations from the layer's start."""
    if not steps:
        return ()
    begun = unsettled(patient)
    layer = begun.layer
    z, rows = begun.z, []
    for step in range(steps[-1] + 1):
        image = layer.cell(z, *begun.plain)
        if step in steps:
            after = rows_of(image, layer.coupled)
            change = (after - rows_of(z, layer.coupled)).square().mean(1).sqrt()
            size = after.square().mean(1).sqrt() + torch.finfo(after.dtype).tiny
            rows.append(StepResidual(step, _median(change / size), _median(change)))
        z = image
    return tuple(rows)


def _median(values: Tensor) -> float:
    """Infinite where half of the values are not finite."""
    ordered = values.nan_to_num(math.inf, math.inf).sort().values
    last = len(ordered) - 1
    return (float(ordered[last // 2]) + float(ordered[(last + 1) // 2])) / 2


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
