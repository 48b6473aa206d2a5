"""Every adjoint on one's own layer and batch: how far from the exact gradient, and at what cost."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn

from equilibria import solve
from equilibria.nn import using
from equilibria.solve import Adjoint, Implicit, NeumannPhantom, Phantom
from equilibria.stability.derivative_check import ADVICE, Cut, describe_cuts, find_cuts
from equilibria.stability.examination import describe_vanished
from equilibria.stability.examined import Exact, Patient, cosine, map_floats, peak_bytes
from equilibria.stability.gradients import (
    Answer,
    Gradients,
    Loss,
    differentiate,
    ratio_of,
    residual_left,
    unless_vanished,
)

BELIEVED = 1e-6
"""Largest relative residual behind an exact gradient that others are compared with."""

LENGTHS = (0.5, 2.0)
"""Ratios of lengths between which a gradient that points the right way is recommended: a learning
rate absorbs no more."""

SETTINGS = (
    *((1, 1.0), (2, 1.0), (3, 1.0), (5, 1.0), (10, 1.0)),
    *((2, 0.5), (5, 0.5), (10, 0.5), (5, 0.8)),
)
"""Steps and damping at which the phantom gradients are tried."""


def candidates(layer: Any) -> tuple[Adjoint, ...]:
    """Return the adjoints that are tried on a layer: the one in use first."""
    found: list[Adjoint] = [layer.adjoint.now, solve.JacobianFree()]
    if isinstance(layer.solver, solve.Broyden) and layer.solver.memory is None:
        found.append(solve.Shine())
    found += [NeumannPhantom(steps=k, damping=b) for k, b in SETTINGS if k > 1]
    found += [Phantom(steps=k, damping=b) for k, b in SETTINGS]
    if not isinstance(found[0], Implicit):
        found.append(Implicit())
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One adjoint beside the exact gradient.

    Attributes:
        name: its kind, with steps and damping.
        adjoint: as it is written in Python.
        line: as it is written in a recipe.
        exact: whether it is exact up to a tolerance.
        cosine: with the exact gradient with respect to all parameters of the layer (to its
            operands, where it has none).
        sample_cosine: the smallest of the gradients with respect to the operands, over the samples
            whose own is at least a thousandth of the largest.
        norm_ratio: its length over that of the exact one.
        cost: evaluations of f and products with its Jacobian, per sample, besides the solve itself.
        step_ms: forward and backward, median milliseconds, all adjoints interleaved.
        backward_ms: of that backward alone.
        bytes: peak of forward and backward.
    """

    name: str
    adjoint: str
    line: str
    exact: bool
    cosine: float
    sample_cosine: float
    norm_ratio: float
    cost: float
    step_ms: float
    backward_ms: float
    bytes: int

    def passes(self, floor: float) -> bool:
        """Does it point where the exact one does, at a length that a learning rate absorbs?"""
        return self.cosine >= floor and LENGTHS[0] <= self.norm_ratio <= LENGTHS[1]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All adjoints on one layer and batch.

    Attributes:
        layer: path of the layer in the module.
        samples: in the batch.
        loss: what was differentiated, "loss" or "random projection" where none was given.
        reference: largest relative residual behind the exact gradient, forward and adjoint.
        floor: the cosine that is asked for.
        rows: the adjoints, the one in use first, then by kind.
        vanished: norm of dL/dz* where the gradient of the loss has vanished, so that a random
            projection of the output was differentiated instead; None where it has not.
        cuts: derivatives of the cell that autograd gets wrong, by finite differences: where there
            are any, no gradient is exact, and nothing is recommended.
    """

    layer: str
    samples: int
    loss: str
    reference: float
    floor: float
    rows: Sequence[Compared]
    vanished: float | None = None
    cuts: Sequence[Cut] = ()

    @property
    def compared(self) -> bool:
        """Was there an exact gradient to compare with?"""
        return self.reference <= BELIEVED and not self.cuts

    @property
    def recommended(self) -> Compared | None:
        """The cheapest that passes the floor: of the fewest evaluations and products, and of
        those the fastest. None where none does, or where there is nothing to compare with."""
        if not self.compared:
            return None
        passing = [row for row in self.rows if row.passes(self.floor)]
        return min(passing, key=lambda row: (round(row.cost), row.step_ms), default=None)

    @property
    def recipe_line(self) -> str | None:
        """What a recipe says to train by it; None where none is recommended."""
        found = self.recommended
        return None if found is None else f"adjoint: {found.line}"

    @property
    def sentence(self) -> str:
        """What to do."""
        said = self._say()
        return said if self.vanished is None else f"{describe_vanished(self.vanished)} {said}"

    def _say(self) -> str:
        if self.cuts:
            return f"{describe_cuts(self.cuts)}. {ADVICE.removesuffix('.')}"
        if not self.compared:
            return (
                f"There is no exact gradient to compare with: in float64 a relative residual of "
                f"{self.reference:.1e} is left. Nothing is recommended; see `equilibria doctor`"
            )
        found, low, high = self.recommended, *LENGTHS
        asked = f"a cosine of {self.floor:g} and {low:g} to {high:g} times the exact length"
        if found is None:
            return f"No adjoint reaches {asked}: take Implicit with a tighter tolerance"
        others = [row for row in self.rows if not row.exact]
        if found.exact and not any(row.passes(self.floor) for row in others):
            short = any(row.cosine >= self.floor for row in others)
            why = "; others reach the cosine, but not the length" if short else ""
            return f"Only the exact adjoint reaches {asked}{why}: {found.line}"
        return f"The cheapest that reaches {asked}: {found.line}"

    def json(self) -> dict[str, Any]:
        """Return everything as numbers and text."""
        found = self.recommended
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            **{name: [asdict(x) for x in getattr(self, name)] for name in ("rows", "cuts")},
            "recommended": None if found is None else found.adjoint,
            "recipe_line": self.recipe_line,
            "sentence": self.sentence,
        }

    def __str__(self) -> str:
        head = ("adjoint", "cosine", "worst sample", "length", "cost", "step, ms", "bytes")
        table = [head, *(_format_row(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(head))]
        lines = [
            "  ".join(
                [line[0].ljust(widths[0])]
                + [cell.rjust(n) for cell, n in zip(line[1:], widths[1:], strict=True)]
            )
            for line in table
        ]
        return "\n".join([*lines, self.sentence])


def _format_row(row: Compared) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.cosine:.4f}",
        f"{row.sample_cosine:.3f}",
        f"{row.norm_ratio:.3f}",
        f"{row.cost:.1f}",
        f"{row.step_ms:.2f}",
        f"{row.bytes:,}",
    )


def compare_adjoints(
    module: nn.Module,
    *inputs: Any,
    loss: Loss | None = None,
    answer: Answer = None,
    adjoints: Sequence[Adjoint] | None = None,
    floor: float = 0.99,
    repeats: int = 5,
    seed: int = 0,
) -> Comparison:
    """Compares the gradient of every adjoint with the exact one, on one's own layer and batch.

    The exact gradient is computed in float64, at a solution and with an adjoint of relative
    residual 1e-10. All others are in the layer's own precision, by the solver that trains it, in
    evaluation mode (no dropout). The module is copied and left as it is.

    All of them take the derivatives of the cell from autograd. Finite differences say whether these
    are right, with respect to the state, the operands and the parameters: a cell that calls
    `detach`, numpy or `float` inside may be cut from autograd without an error. See `cuts`.

    Args:
        module: a `DEQ`, or a module that holds one and calls it once.
        inputs: of the module: one batch.
        loss: the module's output -> scalar; None for a random projection, a linear function of it.
            Where the gradient of the loss has vanished, as on samples that a classifier is sure of,
            it says nothing of adjoints, and a random projection takes its place.
        answer: the module's output -> the tensors in it that the loss is of, such as logits, which
            are projected then; None for the whole output.
        adjoints: to compare; None for `candidates(layer)`.
        floor: the smallest cosine that is recommended, in (0, 1].
        repeats: of each timing, of which the median counts.
        seed: of the random projection.

    Raises:
        ValueError: the module holds no equilibrium layer, or several; no adjoint; an impossible
            option.

    Source: Bai 2022 (thesis), sec. 5.3.

    Example:
        >>> found = eq.stability.compare_adjoints(model, x, loss=lambda y: y.square().mean())
        >>> print(found, found.recipe_line)
    """
    if not 0 < floor <= 1:
        raise ValueError(f"floor: expected a cosine in (0, 1], got {floor!r}")
    if isinstance(repeats, bool) or repeats < 1:
        raise ValueError(f"repeats: expected a whole number >= 1, got {repeats!r}")
    patient = Patient.admit(module, inputs, merged=False)
    layer = patient.layer
    tried = candidates(layer) if adjoints is None else tuple(each.now for each in adjoints)
    if not tried:
        raise ValueError("adjoints: expected at least one, such as eq.JacobianFree(), got none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", solve.SolveWarning)  # residuals are told beside
        with using(layer, layer.solver), torch.no_grad():
            found = patient.call().solution
        exact = Exact.of(patient, found)
        z0 = map_floats(lambda x: x.detach().double(), exact.solution.value)
        loss, vanished = unless_vanished(loss, answer, patient, exact, found, seed)
        cuts = find_cuts(exact, seed)
        reference, solved = differentiate(exact.patient, loss, seed, z0=z0)
        measured = [_measure(patient, each, reference, loss, seed) for each in tried]
        times = _times(patient, tried, loss, seed, repeats, found.status.device)
    rows = [
        Compared(**figures, step_ms=1e3 * step, backward_ms=1e3 * backward)
        for figures, (step, backward) in zip(measured, times, strict=True)
    ]
    return Comparison(
        layer=patient.path,
        samples=len(found.status),
        loss="random projection" if loss is None or vanished is not None else "loss",
        vanished=vanished,
        cuts=cuts,
        reference=residual_left(solved),
        floor=floor,
        rows=rows,
    )


def _measure(
    patient: Patient, adjoint: Adjoint, exact: Gradients, loss: Loss | None, seed: int
) -> dict[str, Any]:
    layer = patient.layer
    with using(layer, layer.solver, adjoint):
        used, solution = differentiate(patient, loss, seed)
        device = solution.status.device
        peak = peak_bytes(lambda: differentiate(patient, loss, seed), device)
    ours, theirs = used.flat, exact.flat
    backward = solution.adjoint
    if backward is not None:
        cost = float(backward.stats.evals.double().mean()) + 1.0  # f is evaluated once more
    elif isinstance(adjoint, solve.Unrolled):
        cost = float(solution.stats.evals.double().mean())
    else:
        cost = _cost(adjoint)
    return {
        "name": _name(adjoint),
        "adjoint": repr(adjoint),
        "line": recipe_of(adjoint),
        "exact": isinstance(adjoint, Implicit),
        "cosine": float(cosine(ours, theirs)) if bool(torch.isfinite(ours).all()) else math.nan,
        "sample_cosine": used.worst(exact),
        "norm_ratio": ratio_of(ours, theirs),
        "cost": cost,
        "bytes": peak,
    }


def _name(adjoint: Adjoint) -> str:
    if isinstance(adjoint, NeumannPhantom | Phantom):
        return f"{type(adjoint).__name__}({adjoint.steps}, {adjoint.damping:g})"
    return type(adjoint).__name__


def _cost(adjoint: Adjoint) -> float:
    """Evaluations and products of those whose number is known: the one evaluation in backward, and
    products; of steps with a graph, each and its product, and the last residual."""
    if isinstance(adjoint, NeumannPhantom):
        return float(adjoint.steps)
    if isinstance(adjoint, Phantom):
        return 2.0 * adjoint.steps + 1.0
    if isinstance(adjoint, solve.Shine):
        return 1.0 + adjoint.refine
    return 1.0


def _times(
    patient: Patient,
    adjoints: Sequence[Adjoint],
    loss: Loss | None,
    seed: int,
    repeats: int,
    device: torch.device,
) -> list[tuple[float, float]]:
    """Seconds of a step and of its backward, medians of interleaved repeats after a first one."""
    layer = patient.layer
    taken: Mapping[int, list[tuple[float, float]]] = {i: [] for i in range(len(adjoints))}
    for repeat in range(repeats + 1):
        for i, adjoint in enumerate(adjoints):
            moments: list[float] = []

            def moment(moments: list[float] = moments) -> None:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                moments.append(time.perf_counter())

            with using(layer, layer.solver, adjoint):
                moment()
                differentiate(patient, loss, seed, between=moment)
                moment()
            if repeat:
                taken[i].append((moments[2] - moments[0], moments[2] - moments[1]))
    return [
        (statistics.median(step for step, _ in each), statistics.median(back for _, back in each))
        for each in taken.values()
    ]


def recipe_of(method: Any) -> str:
    """Return an adjoint or another method as a recipe writes it, without what is usual."""
    usual = type(method)()
    parts = [f"name: {type(method).__name__}"]
    for each in fields(method):
        value = getattr(method, each.name)
        if value != getattr(usual, each.name):
            parts.append(f"{each.name}: {_value(value)}")
    return "{" + ", ".join(parts) + "}"


def _value(value: Any) -> str:
    if hasattr(value, "__dataclass_fields__"):
        return recipe_of(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        text = f"{value:g}"
        text = text if float(text) == value else repr(value)
        return text if "." in text else text.replace("e", ".0e")  # YAML takes 1e-05 for a word
    return str(value)
