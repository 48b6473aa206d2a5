"""Recurrent weights by the spectral radius that they are to give f at its fixed points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from equilibria.checks import check_within
from equilibria.nn.init import RecurrentWeight, recurrent_weights, set_weights
from equilibria.stability import fixed_points
from equilibria.stability.examined import Patient
from equilibria.stability.jacobian import spectral_radius
from equilibria.words import plural

GRID = 2.0
"""Ratio of neighbouring factors while a bracket is sought."""
STEPS = 40
"""Measurements inside a bracket, at most."""
NARROW = 1e-3
"""Relative width of a bracket within which the radius jumps rather than passes the target."""
APART = 1.4
"""Ratio of two factors, at least, between which a radius that depends on them would differ."""


@dataclass(frozen=True)
class Measured:
    """The spectral radius that a factor gives.

    Attributes:
        factor: of the weights as they were found.
        radius: the largest over the samples of the batch; infinite where some were not solved, or
            where df/dz is not finite.
        solved: samples whose fixed point was found.
        samples: of the batch.
    """

    factor: float
    radius: float
    solved: int
    samples: int

    @property
    def known(self) -> bool:
        """Whether the radius is a measurement."""
        return math.isfinite(self.radius)


@dataclass(frozen=True)
class RescaledWeight:
    """A weight that was multiplied: its path, shape, and `gain` before and after; see
    `InitializedWeight`."""

    path: str
    shape: tuple[int, ...]
    before: float
    after: float


@dataclass(frozen=True)
class Rescaled:
    """What `set_radius` did.

    Attributes:
        target: the radius that was asked for.
        radius: the radius now, the largest over the samples.
        factor: by which the weights were multiplied.
        measured: all that was measured, by rising factor.
        rows: the weights.
    """

    target: float
    radius: float
    factor: float
    measured: tuple[Measured, ...]
    rows: tuple[RescaledWeight, ...]

    def __str__(self) -> str:
        lines = [
            f"spectral radius {self.radius:.3f} (asked for {self.target:g}), the largest of "
            f"{self.measured[0].samples} samples: recurrent weights times {self.factor:.4g}"
        ]
        for row in self.rows:
            size = " x ".join(map(str, row.shape))
            lines.append(f"{row.path} ({size}): gain {row.before:.3g} -> {row.after:.3g}")
        return "\n".join(lines)


class UnreachableRadiusError(ValueError):
    """No factor gives the radius that was asked for; `measured` has what they give."""

    def __init__(self, message: str, measured: Sequence[Measured]) -> None:
        super().__init__(message)
        self.measured = tuple(measured)


def set_radius(
    model: nn.Module,
    *inputs: Any,
    radius: float = 0.7,
    layers: Sequence[str] | None = None,
    tolerance: float = 0.02,
    limit: float = 1000.0,
    rtol: float = 1e-5,
) -> Rescaled:
    """Multiply the recurrent weights of a model, so that f has a spectral radius at z* on a batch.

        max over the batch of rho(df/dz at z*) = radius,    W <- factor W for all recurrent W,

    measured and not predicted: for each factor that is tried the fixed points are solved for, by
    the layer's own solver and where that fails by Broyden's, and `spectral_radius` is taken there.
    The factors are tried on a copy in eval mode, in the weights' own precision where autocast is
    on, and in inference mode as without. The model's weights alone are changed, at the end,
    through their parametrisation where they have one; modes, gradients and torch's random state
    stay.

    A weight inside the cell that is applied to its input alone is left as it is; one evaluation at
    two states tells. A radius near 1 makes a network that is deep, and near instability; .3 to .9
    is where to begin. Where the radius does not grow steadily with the factor, the answer is a
    crossing near a factor of 1.

    Args:
        model: a `DEQ`, or a module that holds one and calls it once.
        *inputs: what it is called with: a batch like those of training.
        radius: to be reached, in (0, 1).
        layers: only weights whose path matches one of these patterns, such as `*expand*`; None for
            all that `recurrent_weights` finds.
        tolerance: largest |difference| from `radius`.
        limit: the factor stays between 1 / limit and limit, which are tried last.
        rtol: relative residual at which a sample counts as solved.

    Returns:
        The factor, what was measured, and the weights that were multiplied. `print` it.

    Raises:
        ValueError: `radius` is outside (0, 1), `tolerance` not positive or `limit` not above 1;
            there is no recurrent weight, or all are zero; no equilibrium layer, or several.
        UnreachableRadiusError: (a ValueError) no factor gives the radius: the weights have no
            effect on it, or what they can give ends below or above it, as with normalised states or
            bounded weights. The message names the range that was measured; the weights are as they
            were.

    Example:
        >>> eq.nn.init.initialize(model, "orthogonal")
        >>> print(eq.stability.set_radius(model, x, radius=0.8))

    papers: Agarwala and Schoenholz 2022, sec. 3.2 (the radius decides on stability).
    """
    if not 0.0 < radius < 1.0:
        raise ValueError(
            f"radius must lie in (0, 1), best between .3 and .9; got {radius}. From 1 on, plain "
            "iteration does not converge, and small changes of the input change z* without bound"
        )
    check_within("(0, inf)", tolerance=tolerance)
    if not 1.0 < limit < math.inf:
        raise ValueError(f"limit must be finite and above 1, got {limit}")
    weights = recurrent_weights(model, layers)
    with fixed_points.as_it_is(model):
        patient = fixed_points.copy_patient(model, inputs)
        weights, twins = _keep_applied(weights, patient, layers)
        search = _Search(patient, twins, radius, tolerance, limit, rtol)
        best = search.run()
        before = [weight.gain() for weight in weights]
        set_weights([(weight, best.factor * weight.value()) for weight in weights])
        rows = [
            RescaledWeight(weight.path, tuple(weight.value().shape), size, weight.gain())
            for weight, size in zip(weights, before, strict=True)
        ]
    return Rescaled(radius, best.radius, best.factor, tuple(search.table()), tuple(rows))


def _keep_applied(
    weights: Sequence[RecurrentWeight], patient: Patient, layers: Sequence[str] | None
) -> tuple[list[RecurrentWeight], list[RecurrentWeight]]:
    """Those of the weights that are applied to the state, and the same of the copy.

    Raises:
        ValueError: there is none, or all are zero.
    """
    twins = recurrent_weights(patient.module, layers)
    used = fixed_points.find_applied(twins, fixed_points.begin_unsolved(patient))
    if not any(used):
        raise ValueError(
            f"none of {_paths(weights)} is applied to the state, so no factor changes the "
            "spectral radius"
        )
    weights, twins = (list(itertools.compress(each, used)) for each in (weights, twins))
    if not any(twin.value().any() for twin in twins):
        raise ValueError(
            f"the weights are zero: no factor changes {_paths(twins)}. Fill them first, as "
            "equilibria.nn.init.initialize does"
        )
    return weights, twins


class _Search:
    """Looks for the factor, on a copy."""

    def __init__(
        self,
        patient: Patient,
        weights: list[RecurrentWeight],
        target: float,
        tolerance: float,
        limit: float,
        rtol: float,
    ) -> None:
        self.patient = patient
        self.weights = weights
        self.base: list[Tensor] = [weight.value().clone() for weight in self.weights]
        self.target, self.tolerance, self.limit, self.rtol = target, tolerance, limit, rtol
        self.seen: dict[float, Measured] = {}

    def run(self) -> Measured:
        first = self.measure(1.0)
        if self.met(first):
            return first
        # A radius grows with the weights as a rule: the likely side comes first.
        upward = first.radius < self.target
        for up in (upward, not upward):
            if found := self.walk(up):
                return found
        raise UnreachableRadiusError(self.explain(), self.table())

    def walk(self, up: bool) -> Measured | None:
        """Go from a factor of 1 to the limit; where the radius passes the target, look closer."""
        before = self.measure(1.0)
        size = 1.0
        while size < self.limit:
            size = min(GRID * size, self.limit)
            here = self.measure(size if up else 1 / size)
            if self.met(here):
                return here
            if (here.radius < self.target) != (before.radius < self.target) and (
                found := self.between(before, here)
            ):
                return found
            before = here
        return None

    def between(self, a: Measured, b: Measured) -> Measured | None:
        """A factor between two whose radii lie on both sides of the target.

        By regula falsi on the logarithms, halving instead where one end is not known or where it
        was tried in vain. What is not known counts as too large.
        """
        halve = False
        for _ in range(STEPS):
            if abs(math.log(b.factor / a.factor)) < NARROW:
                return None
            place = 0.5
            if not halve and a.known and b.known and min(a.radius, b.radius) > 0:
                x, y = (math.log(m.radius / self.target) for m in (a, b))
                place = min(max(x / (x - y), 0.05), 0.95)
            here = self.measure(a.factor * (b.factor / a.factor) ** place)
            if self.met(here):
                return here
            width = abs(math.log(b.factor / a.factor))
            if (here.radius < self.target) == (a.radius < self.target):
                a = here
            else:
                b = here
            halve = abs(math.log(b.factor / a.factor)) > 0.5 * width
        return None

    def met(self, measured: Measured) -> bool:
        return abs(measured.radius - self.target) <= self.tolerance

    def measure(self, factor: float) -> Measured:
        if factor not in self.seen:
            set_weights(
                [(w, factor * base) for w, base in zip(self.weights, self.base, strict=True)]
            )
            settled = fixed_points.settle(self.patient, self.rtol)
            solved, samples = int(settled.solved.sum()), settled.solved.numel()
            radius = math.inf
            if solved == samples:
                layer = settled.layer
                radii = spectral_radius(
                    layer.cell, settled.z, *settled.operands, coupled=layer.coupled
                )
                radius = float(radii.max())
                radius = math.inf if math.isnan(radius) else radius
            self.seen[factor] = Measured(factor, radius, solved, samples)
        return self.seen[factor]

    def table(self) -> list[Measured]:
        return [self.seen[factor] for factor in sorted(self.seen)]

    def explain(self) -> str:
        table = self.table()
        known = [m for m in table if m.known]
        text = f"no factor gives a spectral radius of {self.target:g} +- {self.tolerance:g}: "
        if known:
            low, high = min(known, key=_radius), max(known, key=_radius)
            text += (
                f"measured were {low.radius:.3g} (factor {low.factor:.3g}) to {high.radius:.3g} "
                f"(factor {high.factor:.3g}), with "
            )
        else:
            text += "nothing could be measured with "
        text += (
            f"factors from {table[0].factor:.3g} to {table[-1].factor:.3g} of "
            f"{plural(len(self.weights), 'recurrent weight')}"
        )
        unsolved = [m for m in table if m.solved < m.samples]
        if unsolved:
            best = max(m.solved for m in unsolved)
            text += (
                f"; {_some(unsolved, table)}, fixed points were not found (at best {best} of "
                f"{table[0].samples} samples)"
            )
        if broken := [m for m in table if m.solved == m.samples and not m.known]:
            text += (
                f"; {_some(broken, table)}, fixed points were found, but df/dz is not finite there"
            )
        if zero := [w for w, base in zip(self.weights, self.base, strict=True) if not base.any()]:
            text += f". No factor changes {_paths(zero)}, zero as yet"
        else:
            text += _reason(known, self.target, jumps=len(known) == len(table))
        return f"{text}. The weights are as they were"


def _reason(known: Sequence[Measured], target: float, *, jumps: bool) -> str:
    """Why no factor gives the target, as far as what is known tells; `jumps` where all is."""
    if len(known) < 2:
        return ""
    low, high = min(map(_radius, known)), max(map(_radius, known))
    if known[-1].factor >= APART * known[0].factor and high - low <= 1e-3 * high:
        return ". The weights have no effect on it, as where what they give is normalised"
    if jumps and low < target < high:
        return ". Between two neighbouring factors it jumps"
    return ""


def _some(rows: Sequence[Measured], table: Sequence[Measured]) -> str:
    return (
        f"with {len(rows)} of {len(table)} factors, between {rows[0].factor:.3g} and "
        f"{rows[-1].factor:.3g}"
    )


def _paths(weights: Sequence[RecurrentWeight]) -> str:
    return ", ".join(weight.path for weight in weights)


def _radius(measured: Measured) -> float:
    return measured.radius
