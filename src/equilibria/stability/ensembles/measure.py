"""A model's fixed points on one batch, with recurrent weights from ensembles at several scales."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.nn import init, using
from equilibria.nn.frozen import module_of
from equilibria.nn.init.weight import joint_gain
from equilibria.solve import Picard, SolveWarning, Status
from equilibria.stability.ensembles.results import Start, Sweep, Trial, mean
from equilibria.stability.examined import LayerCall, Patient, rows_of
from equilibria.stability.fixed_points import Settled, as_it_is
from equilibria.stability.jacobian import spectral_radius
from equilibria.theory.meanfield import mean_field
from equilibria.theory.spectrum import radius_at

# --- forecast -------------------------------------------------------------------------------------

# What the theory of wide networks predicts of a cell, where there is one.


@dataclass(frozen=True)
class Theory:
    """A cell that the theory covers, with the moments of its input; or why there is none.

    Attributes:
        cell: the form that the cell declares; None where there is no theory.
        reason: why there is none.
        input_mean: mean of the entries of u, over the batch.
        input_variance: their variance within a sample, which is what theory takes of one input,
            mean over the samples.
    """

    cell: init.Elementwise | None
    reason: str = ""
    input_mean: float = math.nan
    input_variance: float = math.nan

    @classmethod
    def of(
        cls,
        cell: Callable[..., Any],
        weights: Sequence[init.RecurrentWeight],
        operands: tuple[Any, ...],
    ) -> Theory:
        """Return what is known of a cell.

        Args:
            cell: that of the layer, which says in an attribute `theory` what form it has.
            weights: its recurrent weights.
            operands: what it is called with; the first is u.
        """
        form = getattr(module_of(cell), "theory", None)
        name = type(module_of(cell) or cell).__name__
        if not isinstance(form, init.Elementwise):
            return cls(
                None,
                f"{name} declares no elementwise activation (equilibria.nn.init.Elementwise), and "
                "the theory is of phi(W z) with a single W",
            )
        if len(weights) != 1:
            return cls(None, f"{name} has {len(weights)} recurrent weights, the theory one")
        u = operands[0] if operands else None
        if not (isinstance(u, Tensor) and u.is_floating_point()):
            return cls(None, f"the first operand of {name} is no tensor: the theory takes u there")
        rows = u.detach().double().reshape(len(u) if u.dim() > 1 else 1, -1)
        variance, mean = torch.var_mean(rows, 1, correction=0)
        return cls(form, "", float(mean.mean()), float(variance.mean()))

    def radius(self, ensemble: init.Ensemble, gain: float) -> float:
        """Return the spectral radius of J at z* for a root mean square singular value of W.

        NaN where there is no theory, or where it has no fixed point.
        """
        if self.cell is None:
            return math.nan
        try:
            found = mean_field(
                self.cell.activation,
                ensemble,
                gain**2,
                input_variance=self.input_variance,
                input_mean=self.input_mean,
                injection=self.cell.injection,
            )
            return radius_at(found)
        except ValueError:  # no solution at this V, or none that is known for this activation
            return math.nan


# --- measure --------------------------------------------------------------------------------------


SCALES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
"""Scales that are tried where none are given: about a factor of 1.4 apart."""

DRAWS = 3
"""Draws of the weights at each of them."""

_APART = 2**31
"""Keeps the draws' seeds from that of the model, whose first weights would be the same numbers."""

_NONE = torch.tensor([math.nan])

EDGES = 2
"""How often the gap is halved between the last workable scale and the next."""


def sweep(
    module: nn.Module,
    *inputs: Any,
    ensembles: Sequence[init.Ensemble] = ("gaussian", "orthogonal", "goe"),
    scales: Iterable[float] = SCALES,
    draws: int = DRAWS,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Sweep:
    """Measures how a model would start, over ensembles and scales of its recurrent weights.

    For each it solves the batch with the layer's own solver, and by plain iteration to the same
    tolerance within as many evaluations, on a copy in evaluation mode; `module` stays as it is.
    Draw k has the same random numbers at each scale, so that what changes with the scale is not
    chance. Two more scales narrow down where an ensemble stops being workable.

    Where the cell declares its form (`equilibria.nn.init.Elementwise`), what theory predicts stands
    beside it, at the scale that the weights have as f uses them.

    Args:
        module: a `DEQ`, or a module that holds one and calls it once.
        *inputs: what `module` is called with.
        ensembles: of `equilibria.nn.init.ENSEMBLES`.
        scales: sqrt(V) of the weights, positive.
        draws: draws of the weights for each, at least 1.
        layers: patterns of the weights that are drawn; None for all.
        seed: of the draws.
        progress: called after each solve with their number and the largest that it can become.

    Returns:
        What was measured; `recommend` chooses from it, and `tabulate` shows it.

    Raises:
        ValueError: an unknown ensemble, a scale that is not positive and finite, no draws, no
            recurrent weight, none that can be a member of any of the ensembles, no equilibrium
            layer or several, or a layer called more than once.

    papers: Agarwala and Schoenholz 2022, sec. 3 and 4.
    """
    names: list[init.Ensemble] = [init.check_ensemble(name) for name in dict.fromkeys(ensembles)]
    sizes = sorted({float(scale) for scale in scales})
    _check(names, sizes, draws)
    with as_it_is(module), warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # the shares that converge say it
        patient = Patient.admit(module, inputs)
        layer = patient.layer
        layer.eval_solver = None  # training begins with the other
        weights = init.recurrent_weights(patient.module, layers)
        own, seen = _trial(patient, weights)
        theory = Theory.of(layer.cell, weights, seen.operands)
        names, impossible = _possible(patient.module, names, layers)
        sweeper = _Sweeper(patient, weights, theory, layers, draws, seed)
        total = len(names) * (len(sizes) + EDGES) * draws
        counter = itertools.count(1)
        rows = [
            start
            for name in names
            for start in sweeper.row(name, sizes, lambda: progress(next(counter), total))
        ]
    return Sweep(
        solver=type(layer.solver).__name__,
        rtol=layer.solver.finest,
        max_evals=layer.solver.max_evals,
        samples=seen.solution.status.numel(),
        entries=rows_of(seen.solution.value, layer.coupled).shape[1],
        weights=tuple(weight.path for weight in weights),
        maps=sum(len(weight.maps.tiles(weight.value())) for weight in weights),
        own=own,
        starts=tuple(rows),
        replaced=sweeper.replaced,
        impossible=impossible,
        normalizations=_normalizations(layer.cell),
        theory=str(theory.cell) if theory.cell else "",
        reason=theory.reason,
        input_mean=theory.input_mean,
        input_variance=theory.input_variance,
    )


def _possible(
    module: nn.Module, names: Sequence[init.Ensemble], layers: Sequence[str] | None
) -> tuple[list[init.Ensemble], dict[init.Ensemble, str]]:
    """Which ensembles have members of the weights' shapes; and why the others have none.

    Raises:
        ValueError: none of them has.
    """
    found: list[init.Ensemble] = []
    reasons: dict[init.Ensemble, str] = {}
    for name in names:
        try:
            init.initialize(module, name, layers=layers, generator=None)
            found.append(name)
        except ValueError as error:
            reasons[name] = str(error)
    if not found:
        raise ValueError("; ".join(reasons.values()))
    return found, reasons


@dataclass
class _Sweeper:
    """A copy of the model whose weights are drawn again and again."""

    patient: Patient
    weights: Sequence[init.RecurrentWeight]
    theory: Theory
    layers: Sequence[str] | None
    draws: int
    seed: int
    replaced: dict[init.Ensemble, int] = field(default_factory=dict)

    def row(
        self, name: init.Ensemble, scales: Sequence[float], progress: Callable[[], None]
    ) -> list[Start]:
        """An ensemble at each scale, and where it stops being workable."""
        starts = [self.start(name, scale, progress) for scale in scales]
        for _ in range(EDGES):
            if (scale := _edge(starts)) is None:
                break
            starts.append(self.start(name, scale, progress))
            starts.sort(key=lambda start: start.scale)
        return starts

    def start(self, name: init.Ensemble, scale: float, progress: Callable[[], None]) -> Start:
        """An ensemble at one scale."""
        trials: list[Trial] = []
        for draw in range(self.draws):
            generator = torch.Generator(self.weights[0].value().device)
            generator.manual_seed(_APART + 1_000_003 * self.seed + draw)
            begun = init.initialize(
                self.patient.module, name, scale, layers=self.layers, generator=generator
            )
            self.replaced[name] = sum(used != name for row in begun for used in row.ensembles)
            trials.append(_trial(self.patient, self.weights)[0])
            progress()
        predicted = self.theory.radius(name, mean(trial.gain for trial in trials))
        return Start(ensemble=name, scale=scale, trials=tuple(trials), predicted=predicted)


def _check(names: Sequence[str], scales: Sequence[float], draws: int) -> None:
    if not (names and scales):
        raise ValueError(f"name at least one scale and one ensemble of {', '.join(init.ENSEMBLES)}")
    for scale in scales:
        if not 0 < scale < math.inf:
            raise ValueError(f"a scale is sqrt(V), positive and finite; got {scale:g}")
    if draws < 1:
        raise ValueError(f"draws must be 1 or more; got {draws}")


def _edge(starts: Sequence[Start]) -> float | None:
    """The middle of the gap between the largest workable scale and the next; None without a gap."""
    for start, after in reversed(list(itertools.pairwise(starts))):
        if start.workable and not after.workable:
            return float(f"{math.sqrt(start.scale * after.scale):.3g}")
    return None


def _trial(patient: Patient, weights: Sequence[init.RecurrentWeight]) -> tuple[Trial, LayerCall]:
    """Solve the batch with the weights as they are; and the call that did.

    The operands of the cell are made anew: what a model injects may depend on its recurrent
    weights, as the memory of a Transformer does.
    """
    layer = patient.layer
    own, seen = layer.solver, patient.call()
    with using(layer, Picard(rtol=own.rtol, atol=own.atol, max_evals=own.max_evals)):
        plain = layer(*seen.operands)
    settled = Settled.of(layer, seen, seen.solution.status == Status.CONVERGED)
    radius = _radii(settled) if settled.solved.any() else _NONE
    trial = Trial(
        gain=joint_gain(weights),
        converged=float(settled.solved.double().mean()),
        evals=float(seen.solution.stats.evals.double().mean()),
        plain_converged=float((plain.status == Status.CONVERGED).double().mean()),
        plain_evals=float(plain.stats.evals.double().mean()),
        radius=float(radius.mean()),
        largest=float(radius.max()),
    )
    return trial, seen


def _radii(settled: Settled) -> Tensor:
    """Spectral radii at what was solved."""
    layer = settled.layer
    radii = spectral_radius(layer.cell, settled.z, *settled.operands, coupled=layer.coupled)
    radii = radii[radii.isfinite()].double()
    return radii if len(radii) else _NONE


def _normalizations(cell: Callable[..., Any]) -> tuple[str, ...]:
    """Kinds of the modules in a cell that normalise what flows through it."""
    owner = module_of(cell)
    kinds = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
    modules = () if owner is None else owner.modules()
    return tuple(sorted({type(m).__name__ for m in modules if isinstance(m, kinds)}))
