"""Comparison of a learned solver with classical ones on held-out batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from equilibria.learned.solver import NeuralSolver
from equilibria.learned.weights import Learned
from equilibria.nn.deq import DEQ
from equilibria.nn.using import using
from equilibria.solve import Anderson, Broyden, Picard, Solver, Status
from equilibria.words import percent

ROUNDS = 3

WORTH = 0.9
"""Largest fraction of the best classical solver's evaluations that a learned solver may take, and
of the evaluations without a mixer that one with a mixer may."""

NEAR = 1.05
"""Among learned solvers within this factor of the fewest evaluations, the fastest is chosen."""


@dataclass(frozen=True)
class Contestant:
    """A solver and its results.

    Attributes:
        solver: the solver.
        learned: its weights; None for a classical one.
        evals: `(samples,)` evaluations of each sample.
        status: `(samples,)`.
        seconds: for all batches together.
    """

    solver: Solver
    learned: Learned | None
    evals: Tensor
    status: Tensor
    seconds: float

    @property
    def mean(self) -> float:
        """Mean number of evaluations per sample."""
        return float(self.evals.double().mean())

    @property
    def converged(self) -> float:
        """Fraction of samples that converged."""
        return float((self.status == Status.CONVERGED).double().mean())

    def beats(self, other: Contestant) -> bool:
        """Return whether at least as many samples converge as with another solver, in at most nine
        tenths of its evaluations."""
        return self.converged >= other.converged and self.mean <= WORTH * other.mean


@dataclass(frozen=True)
class Outcome:
    """The result of a contest.

    Attributes:
        classical: the best classical solver: among those with the most converged samples, the one
            with the fewest evaluations.
        learned: the best learned one.
        mixes: whether it has a mixer, which then saves at least a tenth of the evaluations.
        worth: whether it is worth using: as many samples converge, in at most nine tenths of the
            evaluations.
        all: every contestant, by name.
        samples: number of samples given for training and comparison.
        dropped: number of these without an equilibrium to learn from.
    """

    classical: Contestant
    learned: Contestant
    mixes: bool
    worth: bool
    all: Mapping[str, Contestant]
    samples: int = 0
    dropped: int = 0

    @property
    def fastest(self) -> Contestant:
        """The fastest of the classical solvers with the most converged samples."""
        most = self.classical.converged
        usual = [each for each in self.all.values() if each.learned is None]
        return min(
            (each for each in usual if each.converged >= most), key=lambda each: each.seconds
        )

    @property
    def fewest(self) -> Contestant:
        """The learned solver with the fewest evaluations, whatever its time."""
        return _best(each for each in self.all.values() if each.learned is not None)

    def __str__(self) -> str:
        before, after, fastest = self.classical, self.learned, self.fastest
        ratio = after.seconds / fastest.seconds
        figures = (
            f"{after.mean:.1f} evaluations per sample, against {before.mean:.1f} for "
            f"{type(before.solver).__name__}, {'and' if ratio < 1 else 'but'} {ratio:.2f} times "
            f"the time of the fastest classical solver, {type(fastest.solver).__name__}; "
            f"{percent(after.converged)} converged, against {percent(before.converged)}"
        )
        said = "The learned solver" if self.worth else "Not worth it: the learned solver"
        text = f"{said} takes {figures}."
        if self.worth and ratio >= 1:
            text += " It saves evaluations, but not time."
        if self.dropped:
            text += (
                f" {self.dropped} of {self.samples} samples have no equilibrium and were left out."
            )
        return text


def classical(like: Solver) -> dict[str, Solver]:
    """Return the classical solvers that a learned one is compared with, including `like` itself,
    whose tolerances and limit they share."""
    return {
        "the layer's own": like,
        "Picard": Picard(**like.limits),
        "Anderson": Anderson(history=5, **like.limits),
        "Anderson(period=3)": Anderson(period=3, history=6, **like.limits),
        "Broyden": Broyden(**like.limits),
    }


def contest(
    layer: DEQ,
    learned: Learned,
    batches: Sequence[tuple[Any, ...]],
    like: Solver,
    horizon: int,
    rounds: int = ROUNDS,
    history: int = 5,
) -> Outcome:
    """Solve the same batches with learned and classical solvers, in interleaved order.

    Args:
        layer: in eval mode.
        learned: the weights. A solver without its mixer competes too, at periods 1 and 3.
        batches: tuples of the layer's inputs.
        like: solver whose tolerances and limit all of them use.
        horizon: of the learned solver.
        rounds: how often each batch is solved; the median time counts.
        history: number of differences that the learned solver keeps; one more at period 3.
    """
    entries: dict[str, tuple[Solver, Learned | None]] = {
        name: (solver, None) for name, solver in classical(like).items()
    }
    plain = NeuralSolver(history=history, horizon=horizon, **like.limits)
    if learned.initialiser is not None:
        started = Learned(learned.initialiser, None)
        entries["start"] = plain, started
        entries["start, period 3"] = replace(plain, history=history + 1, period=3), started
    if learned.mixer is not None:
        entries["start and mixer" if learned.initialiser is not None else "mixer"] = plain, learned
    found = _measure(layer, entries, batches, rounds)
    usual = {name: found[name] for name in classical(like)}
    others = {name: each for name, each in found.items() if name not in usual}
    mixing = {name: each for name, each in others.items() if each.learned is learned}
    rest = {name: each for name, each in others.items() if name not in mixing}
    before = _best(usual.values())
    best = _best((rest or mixing).values())
    near = (
        each
        for each in rest.values()
        if _alike(each, best) and (each.beats(before) or not best.beats(before))
    )
    best = min(near, key=lambda each: each.seconds, default=best)
    for each in mixing.values() if rest else ():
        if each.beats(best):
            best = each
    mixes = best.learned is not None and best.learned.mixer is not None
    return Outcome(before, best, mixes, best.beats(before), found)


def _alike(one: Contestant, best: Contestant) -> bool:
    """Return whether evaluations are within `NEAR` of the best, with as many samples converged."""
    return one.converged >= best.converged and one.mean <= NEAR * best.mean


def _best(contestants: Any) -> Contestant:
    several = list(contestants)
    most = max(each.converged for each in several)
    return min((each for each in several if each.converged >= most), key=lambda each: each.mean)


@torch.no_grad()
def _measure(
    layer: DEQ,
    entries: Mapping[str, tuple[Solver, Learned | None]],
    batches: Sequence[tuple[Any, ...]],
    rounds: int,
) -> dict[str, Contestant]:
    solutions: dict[str, list[Any]] = {name: [] for name in entries}
    seconds = dict.fromkeys(entries, 0.0)
    for inputs in batches:
        times: dict[str, list[float]] = {name: [] for name in entries}
        for turn in range(rounds):
            for name, (solver, learned) in entries.items():
                with using(layer, eval_solver=solver, neural=learned):
                    began = time.perf_counter()
                    sol = layer(*inputs)
                    wait(sol.status)
                    times[name].append(time.perf_counter() - began)
                if not turn:
                    solutions[name].append(sol)
        for name, each in times.items():
            seconds[name] += statistics.median(each)
    return {
        name: Contestant(
            *entries[name],
            torch.cat([sol.stats.evals for sol in sols]),
            torch.cat([sol.status for sol in sols]),
            seconds[name],
        )
        for name, sols in solutions.items()
    }


def wait(tensor: Tensor) -> None:
    """Wait until a tensor has been computed."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
