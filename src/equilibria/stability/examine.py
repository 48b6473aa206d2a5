"""The doctor: measures how a trained equilibrium layer behaves on a batch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.metric import ACCURACY, Metric
from equilibria.nn import using
from equilibria.solve import Picard, Solution, Solver, SolveWarning, Status
from equilibria.stability.examination import (
    Depth,
    DepthPoint,
    Examination,
    ForwardSolves,
    Gradient,
    JacobianSizes,
    OtherStarts,
    PlainIteration,
    Summary,
    Trace,
    Training,
)
from equilibria.stability.examined import Exact, LayerCall, Patient, relative, rows_of, shares
from equilibria.stability.findings import findings
from equilibria.stability.fixed_points import begin_unsolved
from equilibria.stability.gradients import Answer, examine_gradient
from equilibria.stability.jacobian import jacobian_norm, spectral_radius
from equilibria.stability.plain_iteration import BUDGET, KINDS, classify, record_path

# --- starts ---------------------------------------------------------------------------------------

# Does the answer depend on where the solve begins?


SAME = 1e-6
"""Relative residual of solves from other starts."""

APART = 1e-3
"""Relative distance from which two answers are two. One and the same answer is met to
1e-6 / (1 - spectral radius): below 1e-3 up to a radius of .999."""


def examine_starts(exact: Exact, count: int, generator: torch.Generator) -> OtherStarts:
    """Solves from noise about zero, and compares the answers with the layer's own."""
    layer = exact.patient.layer
    with using(layer, replace(exact.solver, rtol=SAME)):
        home = layer(*exact.operands)
        reached = home.status == Status.CONVERGED
        converged, distances = [], []
        for start in range(count):
            scale = 3.0 if start % 2 else 1.0
            z0 = pytree.tree_map(lambda z, s=scale: s * _like(z, generator), home.value)
            other = layer(*exact.operands, z0=z0)
            arrived = other.status == Status.CONVERGED
            converged.append(arrived)
            rows, end = (rows_of(s.value, layer.coupled) for s in (other, home))
            distances.append(relative(rows - end, end).where(arrived & reached, math.nan))
    largest = torch.stack(distances).nan_to_num(-1).amax(0)
    largest = largest.where(largest >= 0, math.nan)
    return OtherStarts(
        count=count,
        converged=float(torch.stack(converged).double().mean()),
        distance=Summary.of(largest),
        compared=float(largest.isfinite().double().mean()),
        apart=float((largest > APART).double().mean()),
    )


def _like(z: Tensor, generator: torch.Generator) -> Tensor:
    """Noise with each sample's root mean square."""
    noise = torch.randn(z.shape, dtype=z.dtype, generator=generator).to(z.device)
    size = z.flatten(1).square().mean(1).sqrt()
    return noise * size.reshape(-1, *(1 for _ in z.shape[1:]))


# --- examine --------------------------------------------------------------------------------------


STAGES = (
    "solving the batch",
    "estimating the Jacobian",
    "solving again in float64",
    "solving from other starts",
    "comparing the gradient with the exact one",
)
"""What an examination does, in this order."""

Progress = Callable[[str], object]
"""Takes one of `STAGES`, as it begins."""

EVALUATIONS = (1, 2, 3, 5, 8, 12, 20, 30, 50)
"""Numbers of evaluations after which the answer is looked at."""


def doctor(
    module: nn.Module,
    *inputs: Any,
    loss: Callable[[Any], Tensor] | None = None,
    answer: Answer = None,
    figure: Callable[[Any], float] | None = None,
    metric: Metric = ACCURACY,
    chance: Callable[[Any], float | None] | None = None,
    starts: int = 4,
    seed: int = 0,
    training: Training | None = None,
    progress: Progress | None = None,
) -> Examination:
    """Examines an equilibrium layer, alone or inside a model, on one batch.

    Everything is measured on copies in evaluation mode; `module` stays as it is. The cost is that
    of a few dozen forward passes in float64: a batch of one or two hundred samples will do.

    Args:
        module: a `DEQ`, or a module that holds one and calls it once.
        *inputs: what `module` is called with.
        loss: output of the module -> scalar, whose gradient is examined. Without one it is that of
            a random projection of the output; so it is where the gradient of the loss has vanished.
        answer: output of the module -> the tensors in it that the loss is of, such as logits, which
            are projected then; None for the whole output.
        figure: output of the module -> figure that judges it. Without it, figures are left out.
        metric: what the figure is.
        chance: output of the module -> figure of a network that has learnt nothing, to tell
            whether this one has, or None where that is not known. Without it, that is not asked.
        starts: other starts to solve from, at least 1.
        seed: of starts, probes and the random projection.
        training: how it was trained, so that the advice fits; None for nothing known.
        progress: called with each stage as it begins; a layer whose weights or states are not
            finite is not taken beyond the first.

    Returns:
        Numbers and findings. `print` it, or store `json()`.

    Raises:
        ValueError: no layer or several, a layer called more than once, no starts, or a loss that is
            no scalar.
        TypeError: the module cannot be evaluated in float64.

    Example:
        >>> examination = doctor(layer, x)
        >>> print(examination)
    """
    if starts < 1:
        raise ValueError(f"starts is {starts}: expected 1 or more")
    patient = Patient.admit(module, inputs)
    generator = torch.Generator().manual_seed(seed)
    begin = _count_stages(progress)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # the findings say it
        begin()
        with torch.no_grad():
            seen = patient.call(trace=True, states=EVALUATIONS)
        broken = _find_broken(patient.module)
        if broken or bool((seen.solution.status == Status.NONFINITE).all()):
            parts = _leave_blank(metric)
        else:
            parts = {}
            with torch.no_grad():
                parts["depth"] = _depth(patient, seen, figure, metric, chance)
                parts["plain"] = _iterate_plainly(patient, seen.solution)
            begin()
            parts["jacobian"] = _jacobian(patient, seen)
            begin()
            exact = Exact.of(patient, seen.solution)
            begin()
            with torch.no_grad():
                parts["starts"] = examine_starts(exact, starts, generator)
            begin()
            parts["gradient"] = examine_gradient(
                patient, exact, seen.solution, loss, answer, seed, generator
            )
    examination = Examination(
        **_describe(patient, seen.solution), **parts, training=training, broken=broken
    )
    return replace(examination, findings=findings(examination))


def _count_stages(progress: Progress | None) -> Callable[[], None]:
    """What says, at each call, that the next stage begins."""
    stages = iter(STAGES)

    def begin() -> None:
        stage = next(stages)
        if progress is not None:
            progress(stage)

    return begin


def _describe(patient: Patient, solution: Solution) -> dict[str, Any]:
    """What was examined, and its forward solve."""
    layer = patient.layer
    solver = layer.eval_solver or layer.solver
    return {
        "layer": patient.path,
        "solver": repr(solver),
        "adjoint": repr(layer.adjoint),
        "samples": solution.status.numel(),
        "entries": rows_of(solution.value, layer.coupled).shape[1],
        "forward": _forward(solver, solution),
    }


def _find_broken(module: nn.Module) -> tuple[str, ...]:
    """The names of parameters that hold NaN or infinity and of buffers that hold NaN.

    A buffer may hold infinity on purpose, as masks of attention do.
    """
    broken = [name for name, x in module.named_parameters() if not bool(x.isfinite().all())]
    return (*broken, *(name for name, x in module.named_buffers() if bool(x.isnan().any())))


def _leave_blank(metric: Metric) -> dict[str, Any]:
    """What is known where there is nothing to measure: no number."""
    nan, none = math.nan, Summary.of(torch.empty(0))
    return {
        "jacobian": JacobianSizes(
            spectral_radius=none, solved=none, expanding=nan, norm=none, stretch=none
        ),
        "starts": OtherStarts(count=0, converged=nan, distance=none, compared=0.0, apart=nan),
        "gradient": Gradient(
            loss="", cosine=nan, norm_ratio=nan, sample_cosine=nan, reference=nan, backward=None
        ),
        "depth": Depth(points=(), figure=None, metric=metric.describe()),
    }


def _forward(solver: Solver, solution: Solution) -> ForwardSolves:
    stats = solution.stats
    assert stats.trace is not None
    trace = _carry_forward(stats.trace.double().cpu())
    levels = torch.tensor([0.1, 0.5, 0.9, 1.0], dtype=torch.float64)
    p10, p50, p90, largest = torch.quantile(trace, levels, dim=1).tolist()
    return ForwardSolves(
        rtol=solver.finest,
        max_evals=solver.max_evals,
        status=shares(solution.status),
        evals=Summary.of(stats.evals),
        residual=Summary.of(stats.residual),
        error=Summary.of(stats.error[solution.status == Status.CONVERGED]),
        trace=Trace(list(range(1, len(trace) + 1)), p10, p50, p90, largest),
        limit=solver.error,
    )


def _iterate_plainly(patient: Patient, solution: Solution) -> PlainIteration | None:
    """What plain iteration does with the samples that did not converge."""
    failed = (solution.status != Status.CONVERGED).flatten().cpu()
    if not bool(failed.any()):
        return None
    solver = patient.layer.eval_solver or patient.layer.solver
    found = classify(record_path(begin_unsolved(patient, failed), solver.finest))
    evals, periods = (
        torch.tensor([float(value) for value in values if value is not None])
        for values in zip(*((each.evals, each.period) for each in found), strict=True)
    )
    return PlainIteration(
        samples=len(found),
        budget=BUDGET,
        kinds={kind: [each.kind for each in found].count(kind) / len(found) for kind in KINDS},
        evals=Summary.of(evals),
        period=Summary.of(periods),
    )


def _carry_forward(trace: Tensor) -> Tensor:
    """A trace (evals, samples) in which a finished sample keeps its last residual."""
    rows = [trace[0].nan_to_num(math.inf)]
    for row in trace[1:]:
        rows.append(torch.where(row.isnan(), rows[-1], row))
    return torch.stack(rows)


def _jacobian(patient: Patient, seen: LayerCall) -> JacobianSizes:
    layer, z = patient.layer, seen.solution.value
    radius = spectral_radius(layer.cell, z, *seen.operands, coupled=layer.coupled)
    norm = jacobian_norm(layer.cell, z, *seen.operands, coupled=layer.coupled)
    entries = rows_of(z, layer.coupled).shape[1]
    solved = seen.solution.status.flatten() == Status.CONVERGED
    return JacobianSizes(
        spectral_radius=Summary.of(radius),
        solved=Summary.of(radius[solved]),
        expanding=float((radius >= 1).double().mean()),
        norm=Summary.of(norm),
        stretch=Summary.of(norm / math.sqrt(entries)),
        ritz=_ritz(seen.solution),
    )


def _ritz(solution: Solution) -> Summary | None:
    """The largest |Ritz value| of each sample, where the solve has left any."""
    values = solution.stats.ritz
    if values is None:
        return None
    sizes = values.abs()
    largest = sizes.nan_to_num(-1).amax(1)
    return Summary.of(torch.where(largest >= 0, largest, math.nan))


def _depth(
    patient: Patient,
    seen: LayerCall,
    figure: Callable[[Any], float] | None,
    metric: Metric,
    chance: Callable[[Any], float | None] | None,
) -> Depth:
    solution, layer = seen.solution, patient.layer
    end = rows_of(solution.value, layer.coupled)
    needed = int(solution.stats.evals.max())
    points = []
    # The answer is put in the layer's mouth: what it solves meanwhile doesn't matter.
    with using(layer, Picard(max_evals=1)):
        for evals, state in zip(EVALUATIONS, solution.states, strict=True):
            if evals > max(needed, 1):
                break
            distance = relative(rows_of(state, layer.coupled) - end, end)
            found = None if figure is None else figure(patient.call(value=state).output)
            points.append(DepthPoint(evals=evals, distance=Summary.of(distance).p50, figure=found))
    final = None if figure is None else figure(seen.output)
    return Depth(
        points=points,
        figure=final,
        metric=metric.describe(),
        chance=None if chance is None else chance(seen.output),
    )
