"""Memory of one training step against depth."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria import solve
from equilibria.nn import using
from equilibria.run.models import EquilibriumModel, Model
from equilibria.run.tasks import Batch, Task
from equilibria.run.trees import to_device
from equilibria.solve import Adjoint, Solver
from equilibria.stability.examined import peak_bytes

Loss = Callable[[Model, Any], Tensor]
"""(model, output) -> scalar."""

DEPTHS = (5, 10, 20, 40, 80)
"""Evaluations at which a step is measured."""

LONG = (6, 12, 24)
"""The same where one evaluation processes whole segments of a text."""

LONGEST = 60.0
"""Seconds that `measure_within` lets a point take."""

CPU = torch.device("cpu")

Kind = Literal["deq", "unrolled", "checkpointed", "explicit"]


@dataclass(frozen=True)
class _Keyed:
    kind: Kind
    """The DEQ as it trains; its cell unrolled, plain or with checkpointing; an explicit network."""
    evals: int
    """Evaluations of the cell in the forward; layers of an explicit network, 0 if unknown."""

    @property
    def key(self) -> tuple[Kind, int]:
        """What identifies this point among those of a model."""
        return self.kind, self.evals


@dataclass(frozen=True)
class MemoryPoint(_Keyed):
    """What one training step needs at one depth."""

    bytes: int
    """Peak of what forward and backward allocate, minus the gradients of the parameters."""
    history_bytes: int
    """Share of `bytes` that the solvers' histories take: the larger of forward and backward."""
    device: str = "cpu"
    """Type of the device on which it was measured."""


def measure(
    model: Model, task: Task, batch: Batch, depths: Sequence[int] | None = None
) -> list[MemoryPoint]:
    """Measure the memory of a training step: of a DEQ and of its cell unrolled, or of a network.

    Every solve takes the full number of evaluations (its tolerance is 0). Parameters, gradients and
    optimiser state exist before the measurement and are not part of it. It is made in float32, on
    the device of the model: with torch's profiler on the CPU, with
    `torch.cuda.max_memory_allocated` on a GPU.

    For a sequence model the body is measured, without embedding and softmax: tokens are embedded
    beforehand, and the loss is the mean square of the features. The batch measured follows another
    one, so there is a carry.

    Args:
        model: the model; it is copied.
        task: gives the loss.
        batch: one batch.
        depths: numbers of evaluations; None for `DEPTHS`, or `LONG` for sequences, and also the
            solver's `max_evals` where its history grows to the end.
    """
    subject = _subject(model, task, batch)
    return [_point(subject, each)[0] for each in settings(model, depths)]


@dataclass(frozen=True)
class Setting(_Keyed):
    """What is measured of one point.

    Attributes:
        solver: takes this many evaluations; None for an explicit network.
        adjoint: gives the gradient; None for an explicit network.
    """

    solver: Solver | None = None
    adjoint: Adjoint | None = None


def settings(model: Model, depths: Sequence[int] | None = None) -> list[Setting]:
    """Return what `measure` measures of a model, kind by kind, shallowest first."""
    if not isinstance(model, EquilibriumModel):
        layers = getattr(getattr(model, "config", None), "layers", 0)
        # A config for graphs has a method of this name.
        return [Setting("explicit", layers if isinstance(layers, int) else 0)]
    solver = model.deq.solver
    if depths is None:
        depths = LONG if model.reads_segments else DEPTHS
        if history_vectors(solver, solver.max_evals + 1) > history_vectors(
            solver, solver.max_evals
        ):
            depths = sorted({*depths, solver.max_evals})
    kinds: list[tuple[Kind, Solver, Adjoint]] = [
        ("deq", solver, model.deq.adjoint),
        ("unrolled", solve.Picard(), solve.Unrolled()),
        ("checkpointed", solve.Picard(), solve.Unrolled(checkpoint=True)),
    ]
    return [
        Setting(
            kind,
            depth,
            dataclasses.replace(method, rtol=0.0, atol=0.0, max_evals=depth, patience=None),
            derivative,
        )
        for kind, method, derivative in kinds
        for depth in depths
    ]


def list_missing(model: Model, known: Sequence[MemoryPoint]) -> list[Setting]:
    """Return the `settings` of a model that have not been measured yet."""
    done = {point.key for point in known}
    return [each for each in settings(model) if each.key not in done]


def measure_within(
    model: Model,
    task: Task,
    batch: Batch,
    *,
    known: Sequence[MemoryPoint] = (),
    skipped: Callable[[str], None] = lambda reason: None,
    max_bytes: float | None = None,
    max_seconds: float = LONGEST,
) -> Iterator[MemoryPoint]:
    """Measure point by point what `measure` does, skipping what the machine is too small for.

    Before a point is measured, its memory and time are estimated: from the previous point, or from
    steps on two and four samples. Both grow at most in proportion to the evaluations.

    Args:
        model: the model; it is copied.
        task: gives the loss.
        batch: one batch.
        known: points that were measured before; they are not measured again.
        skipped: called with a sentence that says why a point is skipped.
        max_bytes: maximum for a step; None for four fifths of the device's free memory.
        max_seconds: maximum for the two steps of a point.

    Yields:
        A point as soon as it is measured.
    """
    wanted = list_missing(model, known)
    if not wanted:
        return
    device = _device(model)
    # A fifth is left for copies of the weights, their gradients and other programs.
    limit = 0.8 * free_bytes(device) if max_bytes is None else max_bytes
    subject = _subject(model, task, batch)
    latest: tuple[Setting, _Need] | None = None
    shallow: _Need | None = None
    for each in wanted:
        if latest is None or latest[0].kind != each.kind:
            first = next(s for s in settings(model) if s.kind == each.kind)
            # Unrolled, a few evaluations are kept, and a DEQ differentiates one at least: where
            # that many times its memory is there, an estimate would only take time.
            bound = shallow and _Need(shallow.bytes * first.evals, shallow.size, shallow.seconds)
            if bound is None or bound.bytes > limit or bound.seconds > max_seconds:
                bound = _estimate(model, task, batch, first)
            latest = first, bound
        before, need = latest
        likely = need.at(before, each)
        what = f"Memory of a step, {each.kind} at depth {each.evals}, is not measured: "
        if likely.bytes > limit:
            skipped(
                f"{what}it needs about {likely.bytes / 2**30:.1f} GiB, and {limit / 2**30:.1f} GiB "
                "are available"
            )
        elif likely.seconds > max_seconds:
            skipped(
                f"{what}it would take about {likely.seconds:.0f} s on this {device.type} and "
                f"{max_seconds:.0f} s are allowed"
            )
        else:
            try:
                point, need = _point(subject, each)
            except torch.OutOfMemoryError:
                skipped(f"{what}the {device.type} has no memory left")
                continue
            latest = each, need
            shallow = shallow or need
            yield point


@dataclass(frozen=True)
class _Need:
    """What a point took: bytes of a step, bytes of the state, seconds of two steps."""

    bytes: float
    size: float
    seconds: float

    def at(self, here: Setting, there: Setting) -> _Need:
        """Return at most what another point of the kind will take."""
        ratio = there.evals / here.evals if here.evals else 1.0
        if there.kind == "deq":
            more = history_vectors(there.solver, there.evals) - history_vectors(
                here.solver, here.evals
            )
            return _Need(self.bytes + more * self.size, self.size, self.seconds * ratio)
        return _Need(self.bytes * ratio, self.size, self.seconds * ratio)


@dataclass(frozen=True)
class _Subject:
    """What is measured: a model and one batch for it."""

    model: Model
    inputs: Any
    carry: Any
    loss: Loss


def _subject(model: Model, task: Task, batch: Batch) -> _Subject:
    """Return the model, or its body, with a batch on its device."""
    inputs, targets = to_device((batch.inputs, batch.targets), _device(model))
    units = task.units(targets)
    loss: Loss = lambda model, output: task.loss(model, output, targets) / units  # noqa: E731
    if (body := model.strip_to_body(inputs)) is not model:
        model, loss = body, _mean_square
    return _Subject(model, inputs, _carry(model, inputs) if task.streams else None, loss)


def _point(subject: _Subject, setting: Setting) -> tuple[MemoryPoint, _Need]:
    """Measure one point."""
    twin = copy.deepcopy(subject.model).train()
    with using(twin, setting.solver, setting.adjoint):
        peak, size, products, seconds = _step(twin, subject)
    vectors = history_vectors(setting.solver, setting.evals)
    if isinstance(setting.adjoint, solve.Implicit):
        vectors = max(vectors, history_vectors(setting.adjoint.linear, products))
    device = _device(subject.model).type
    point = MemoryPoint(setting.kind, setting.evals, peak, size * vectors, device)
    return point, _Need(peak, size, 2 * seconds)


def _estimate(model: Model, task: Task, batch: Batch, setting: Setting) -> _Need:
    """Return what a point will take, from steps on the first two samples and the first four.

    One row would not do: a BatchNorm cannot train on a single value in each channel.
    """
    rows = batch.samples
    parts = [task.sample("train", min(n, rows)) for n in (2, 4)]
    one, two = (_point(_subject(model, task, part), setting)[1] for part in parts)
    few, more = (part.samples for part in parts)
    ratio = (rows - few) / max(1, more - few)
    return _Need(
        *(
            getattr(one, name) + max(0.0, getattr(two, name) - getattr(one, name)) * ratio
            for name in ("bytes", "size", "seconds")
        )
    )


def free_bytes(device: torch.device) -> float:
    """Return how many bytes can still be allocated on a device; infinity if unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        text = Path("/proc/meminfo").read_text("ascii")
    except OSError:  # not on Linux
        return math.inf
    found = re.search(r"^MemAvailable: +(\d+) kB$", text, re.MULTILINE)
    return 1024.0 * int(found[1]) if found else math.inf


def _device(model: Model) -> torch.device:
    return next(model.parameters()).device


def _mean_square(_: Model, output: Tensor) -> Tensor:
    return output.square().mean()


@torch.no_grad()
def _carry(model: Model, inputs: Any) -> Any:
    """Return what a model carries over to a batch that follows `inputs`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(inputs).carry


def _step(model: Model, subject: _Subject) -> tuple[int, int, int, float]:
    """Return what a step needs: the peak of forward and backward, the largest state's bytes, the
    adjoint's products, and seconds.

    Of several solves one after the other the histories do not add up: the state is the largest.
    """
    size = products = 0

    def step() -> None:
        nonlocal size, products
        prediction = model(subject.inputs, carry=subject.carry)
        states = [pytree.tree_leaves(solution.value) for solution in prediction.solutions]
        sizes = [sum(leaf.numel() * leaf.element_size() for leaf in leaves) for leaves in states]
        size = max(sizes, default=0)
        subject.loss(model, prediction.output).backward()
        for solution in prediction.solutions:
            if solution.adjoint is not None:
                products = max(products, int(solution.adjoint.stats.evals.max()))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solve that was stopped early is what is asked for here
        begin = time.perf_counter()
        step()  # allocates the gradients
        seconds = time.perf_counter() - begin  # the profiler would take most of the time
        return peak_bytes(step, _device(model)), size, products, seconds


def history_vectors(solver: object, evals: int) -> int:
    """Return the size of a solver's history after `evals`, in units of the state, as the solver's
    docstring states it."""
    match solver:
        case solve.Anderson(history=history, period=period):
            kept = min(history or evals, evals)
            return 2 * kept + 2 + (0 if period == 1 else kept + 1)
        case solve.Broyden(memory=memory):
            return min(memory or evals, evals) + 1
        case solve.Auto(history=history, newton=newton):
            kept = min(history, evals)
            third = 0 if newton is None else 3 + history_vectors(newton, evals)
            return 3 * kept + 5 + third
        case solve.NewtonKrylov(linear=linear):
            return 3 + history_vectors(linear, evals)
        case solve.GMRES(restart=restart):
            return min(restart, evals) + 1
        case solve.BiCGSTAB():
            return 5
        case solve.Fallback(first=first, then=then):
            return max(history_vectors(first, evals), history_vectors(then, evals))
        case _:
            return 0
