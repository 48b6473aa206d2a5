"""What a sweep over ensembles and scales has measured, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from equilibria.nn.init import Ensemble
from equilibria.stability.examination import plain

ENOUGH = 0.95
"""Share of samples that must converge, with each draw, for a start to be called workable."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A batch solved with one draw of the recurrent weights.

    Attributes:
        gain: root mean square of the singular values of the weights as f uses them, all maps
            together.
        converged: share of the samples that the layer's own solver brings to their fixed point.
        evals: mean evaluations of a sample.
        plain_converged: the same for plain iteration, z <- f(z), to the same tolerance and within
            as many evaluations.
        plain_evals: its mean evaluations.
        radius: spectral radius of J = df/dz at z*, mean over the samples that have converged; NaN
            where none has.
        largest: the largest of them.
    """

    gain: float
    converged: float
    evals: float
    plain_converged: float
    plain_evals: float
    radius: float
    largest: float


def _mean_over_draws(name: str, what: str) -> Any:
    """Return a property of a start: the mean over its trials of what they have under a name."""
    return property(lambda start: mean(getattr(each, name) for each in start.trials), doc=what)


@dataclass(frozen=True, kw_only=True)
class Start:
    """An ensemble at a scale: what was measured with each draw, and what was predicted.

    Attributes:
        ensemble: the family of the weights.
        scale: sqrt(V) that was asked for.
        trials: one for each draw, at least one.
        predicted: spectral radius of J at z* in the theory of wide networks; NaN where there is no
            theory, or it has no fixed point.
    """

    ensemble: Ensemble
    scale: float
    trials: tuple[Trial, ...]
    predicted: float = math.nan

    @property
    def gain(self) -> float:
        """The root mean square singular value as f uses the weights, mean over the draws."""
        return mean(trial.gain for trial in self.trials)

    converged: ClassVar[float] = _mean_over_draws(
        "converged", "The share of samples that converge, mean over the draws."
    )
    plain_converged: ClassVar[float] = _mean_over_draws(
        "plain_converged", "The share that converges by plain iteration, mean over the draws."
    )
    evals: ClassVar[float] = _mean_over_draws("evals", "Evaluations, mean over samples and draws.")
    plain_evals: ClassVar[float] = _mean_over_draws(
        "plain_evals", "The same for plain iteration, mean over the draws."
    )
    radius: ClassVar[float] = _mean_over_draws(
        "radius",
        "The spectral radius, mean over the draws in which there is one; NaN if in none. Where "
        "the start is not workable, this and `largest` are of the samples that converge, and too "
        "small.",
    )

    @property
    def worst(self) -> float:
        """The share of samples that converge with the draw with the fewest."""
        return min(trial.converged for trial in self.trials)

    @property
    def workable(self) -> bool:
        """Whether enough samples converge with each draw."""
        return self.worst >= ENOUGH

    @property
    def largest(self) -> float:
        """The largest spectral radius of all samples and draws; NaN if there is none."""
        found = [trial.largest for trial in self.trials if math.isfinite(trial.largest)]
        return max(found, default=math.nan)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A model on one batch, over ensembles and scales.

    Attributes:
        solver: that of the equilibrium layer, as it was configured.
        rtol: its tolerance, and that of plain iteration.
        max_evals: its limit of evaluations, and that of plain iteration.
        samples: samples of the batch.
        entries: entries of one sample's state.
        weights: paths of the recurrent weights that were set.
        maps: linear maps that they are made of.
        replaced: of each ensemble that has no member of some map's shape, how many maps are
            Gaussian in its place.
        impossible: ensembles that were left out, since no weight can be a member, and why.
        normalisations: kinds of layers in the cell that normalise the state or the weights.
        own: the model as it was given; None where it could not be had.
        starts: what was tried, ensemble by ensemble, the smallest scale first.
        theory: the cell's form as far as there is a theory of it, "" where there is none.
        reason: why there is none.
        input_mean: mean of the entries of u, where there is a theory.
        input_variance: their variance within a sample, mean over the samples.
        refused: why the model as it was asked for could not be had.
        notes: sentences on what was measured, for the warnings of a recommendation.
    """

    solver: str
    rtol: float
    max_evals: int
    samples: int
    entries: int
    weights: tuple[str, ...]
    maps: int
    own: Trial | None
    starts: tuple[Start, ...]
    replaced: Mapping[Ensemble, int]
    impossible: Mapping[Ensemble, str] = field(default_factory=dict)
    normalizations: tuple[str, ...] = ()
    theory: str = ""
    reason: str = ""
    input_mean: float = math.nan
    input_variance: float = math.nan
    refused: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ensembles(self) -> tuple[Ensemble, ...]:
        """The ensembles that were tried, in their order."""
        return tuple(dict.fromkeys(start.ensemble for start in self.starts))

    def of(self, ensemble: Ensemble) -> Sequence[Start]:
        """Return what was tried of an ensemble, the smallest scale first."""
        found = [start for start in self.starts if start.ensemble == ensemble]
        return sorted(found, key=lambda start: start.scale)

    def json(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, text and numbers; a number that is not finite is
        None, since JSON has no word for it."""
        return plain(asdict(self))


def mean(values: Iterable[float]) -> float:
    """The mean of those values that are finite; NaN if none is."""
    found = [value for value in values if math.isfinite(value)]
    return math.fsum(found) / len(found) if found else math.nan
