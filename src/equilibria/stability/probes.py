"""How a network begins, measured: Monte Carlo probes of the quantities that theory predicts."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from equilibria.nn.init import recurrent_weights
from equilibria.solve import GMRES, Status
from equilibria.stability import fixed_points
from equilibria.stability.examination import plain
from equilibria.stability.examined import Patient, rows_of
from equilibria.stability.fixed_points import Mapped, Settled
from equilibria.stability.jacobian import JacobianOperator, spectral_radius

# --- estimate -------------------------------------------------------------------------------------

# Traces of the resolvent at a fixed point, by random probes, with their errors.


@dataclass(frozen=True)
class Estimate:
    """A mean over random probes.

    Attributes:
        value: NaN where nothing could be measured.
        error: standard error over the probes; NaN of a single one.
        used: samples that took part, of which all linear systems were solved.
    """

    value: float
    error: float
    used: int

    def __str__(self) -> str:
        return f"{self.value:.4g} +- {self.error:.2g}"


def resolvent_traces(
    settled: Settled, probes: int, rtol: float, generator: torch.Generator
) -> tuple[Estimate, Estimate]:
    """Estimates tr[M^T M] and 2 tr[(M^T M)^2], M = (I - J)^-1 at z*, tr being the mean eigenvalue.

        tr[M^T M] = E ||M eps||^2 / N,    tr[(M^T M)^2] = E ||M^T M eps||^2 / N,

    with N independent signs eps. Each probe takes two linear solves by GMRES for each sample; the
    mean is over samples and probes, the error is over probes, each being a mean over the samples.

    papers: Agarwala and Schoenholz 2022, eq. 10, 13 and 16; Hutchinson 1989.
    """
    layer = settled.layer
    # Torch's fused attention has no second derivatives, which products with J need.
    with sdpa_kernel(SDPBackend.MATH):
        jacobian = JacobianOperator(layer.cell, settled.z, settled.operands, layer.coupled)
    samples, width = jacobian.shape
    solver = GMRES(rtol=rtol, max_evals=1500, restart=100)
    good = torch.ones(samples, dtype=torch.bool)
    second: list[Tensor] = []
    fourth: list[Tensor] = []
    for _ in range(probes):
        signs = jacobian.noise(generator).sign()
        forth = solver.solve(lambda rows: [jacobian.direct(rows[0])], [signs])
        back = solver.solve(lambda rows: [jacobian.apply_transpose(rows[0])], forth.value)
        for run, squares in ((forth, second), (back, fourth)):
            good &= (run.status == Status.CONVERGED).cpu()
            squares.append(run.value[0].double().square().sum(1).cpu() / width)
    return _mean(second, good), _mean(fourth, good, 2.0)


def _mean(squares: list[Tensor], good: Tensor, factor: float = 1.0) -> Estimate:
    """Of the samples that are good."""
    used = int(good.sum())
    if not used:
        return Estimate(math.nan, math.nan, 0)
    means = factor * torch.stack(squares)[:, good].mean(1)
    error = float(means.std() / len(means) ** 0.5) if len(means) > 1 else math.nan
    return Estimate(float(means.mean()), error, used)


# --- draws ----------------------------------------------------------------------------------------

# How a measured quantity spreads over random draws of a network.


@dataclass(frozen=True)
class Spread:
    """A quantity over random draws.

    Attributes:
        count: draws in which it was measured.
        missing: draws in which it was NaN, as the radius is where no fixed point was found. These
            are mostly the unstable ones: the others, which all that follows is of, are then a
            selection.
        median: and `low` and `high`, a tenth and nine tenths of the way from the smallest to the
            largest.
        mean: and its standard error `error`, NaN of a single draw.
    """

    count: int
    missing: int
    median: float
    low: float
    high: float
    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of some values."""
        known = torch.tensor([v for v in values if not math.isnan(v)], dtype=torch.float64)
        missing = len(values) - len(known)
        if not len(known):
            return cls(0, missing, *[math.nan] * 5)
        low, median, high = (_quantile(known, q) for q in (0.1, 0.5, 0.9))
        error = float(known.std() / len(known) ** 0.5) if len(known) > 1 else math.nan
        return cls(len(known), missing, median, low, high, float(known.mean()), error)


def over_draws(
    probe: Callable[[int], StartProbe | Mapping[str, float]], draws: int = 20
) -> dict[str, Spread]:
    """Measure several random draws of a network and tell how each quantity spreads.

    Args:
        probe: number of a draw, to be its seed -> what was measured.
        draws: their number, at least 1.

    Returns:
        For each quantity that some draw has, by its name (see `StartProbe.numbers`), its spread.

    Raises:
        ValueError: draws is below 1.

    Example:
        >>> def probe(width, seed):
        ...     torch.manual_seed(seed)
        ...     return probe_start(build(width), x)
        >>> for width in (100, 200, 400):
        ...     print(over_draws(lambda seed: probe(width, seed))["length_variance"])
    """
    if draws < 1:
        raise ValueError(f"draws is {draws}: expected 1 or more")
    tables: list[Mapping[str, float]] = []
    for seed in range(draws):
        found = probe(seed)
        tables.append(found.numbers() if isinstance(found, StartProbe) else found)
    names = list(dict.fromkeys(name for table in tables for name in table))
    return {name: Spread.of([table.get(name, math.nan) for table in tables]) for name in names}


def _quantile(values: Tensor, share: float) -> float:
    """Linear between the two values around it, as usual, but infinite next to an infinite one."""
    ordered = values.sort().values
    place = share * (len(ordered) - 1)
    low, high = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
    part = place - math.floor(place)
    return low if part == 0 or low == high else low + part * (high - low)


# --- probes ---------------------------------------------------------------------------------------


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
        return json.dumps(plain(asdict(self)), indent=2)

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
    with fixed_points.as_it_is(model):
        patient = fixed_points.copy_patient(model, inputs)
        residuals = _iterate(patient, sorted(set(steps)))
        settled = fixed_points.settle(patient, rtol)
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
    used = fixed_points.find_applied(weights, settled)
    return fixed_points.measure_weights(list(itertools.compress(weights, used)), settled)


def _iterate(patient: Patient, steps: Sequence[int]) -> tuple[StepResidual, ...]:
    """Plain iterations from the layer's start."""
    if not steps:
        return ()
    begun = fixed_points.begin_unsolved(patient)
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
