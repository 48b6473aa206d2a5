"""The batch of a recipe that fits on given GPUs, and the expected speed of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from equilibria.train import plan_solve as parts
from equilibria.train.hardware import GPUS
from equilibria.train.optimiser import SGD, Optimiser
from equilibria.train.plan_inputs import Reads, reads
from equilibria.train.plan_measure import Measured
from equilibria.train.plan_step import Sizes, Step, model_of, sizes, trace
from equilibria.train.recipe import Parallel, Recipe

__all__ = ["Figure", "Origin", "Plan", "PlanError", "Share", "plan"]

Origin = Literal["computed", "measured", "given", "assumed"]

USABLE = 0.9
"""Fraction of a GPU's memory available to tensors; the rest is for CUDA itself, NCCL's buffers and
fragmentation."""

MFU = 0.3
"""Fraction of a GPU's peak that a step is assumed to reach unless it has been measured."""

MOST = 1 << 20
"""Largest number of rows per GPU that is tried."""

SINGLE = 4
"""Bytes of a float32 number: parameters, gradients and optimiser state are kept in float32."""


class PlanError(ValueError):
    """The model does not fit, or cannot be sharded in this way; the message suggests a remedy."""


@dataclass(frozen=True)
class Figure:
    """One line of a plan.

    Attributes:
        name: what it is.
        value: the number.
        unit: B, FLOP, FLOP/s, tokens/s, ...; empty for a count.
        origin: whether it was computed, measured, given by the user or assumed.
        note: a remark.
    """

    name: str
    value: float
    unit: str = ""
    origin: Origin = "computed"
    note: str = ""


@dataclass(frozen=True)
class Share:
    """Persistent memory of one GPU in bytes, whatever the batch.

    Attributes:
        parameters: including buffers.
        gradients: of these parameters.
        optimiser: the optimiser state for them.
        communication: DDP's buckets, or what FSDP has gathered or not yet reduced.
    """

    parameters: int
    gradients: int
    optimiser: int
    communication: int

    @classmethod
    def of(cls, size: Sizes, optimiser: Optimiser, parallel: Parallel, shards: int, gpus: int):
        """Return the persistent memory of one of `gpus`, with parameters split into `shards`."""
        whole, part = SINGLE * size.all, SINGLE * -(-size.all // shards)
        # DDP copies gradients into buckets. FSDP keeps parameters gathered while the layer is
        # differentiated, and gradients until they are reduced: at most all of both.
        communication = 0 if gpus == 1 else 2 * whole if shards > 1 else whole
        states = part * _states(optimiser)
        return cls(part + size.buffers, part, states, communication)

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.parameters + self.gradients + self.optimiser + self.communication


@dataclass(frozen=True)
class Plan:
    """The result of planning; all bytes are per GPU.

    Attributes:
        recipe: the recipe.
        reads: the inputs of its steps.
        size: of its model.
        gpus: number of GPUs.
        parallel: how parameters are distributed over them.
        shards: number of parts that parameters are split into.
        memory: bytes of one GPU.
        share: persistent memory.
        step: with the largest batch that fits.
        own: with the recipe's own batch, split into as many micro-batches as needed.
        accumulate: number of these micro-batches.
        gpu: name of a GPU in `GPUS`.
        mfu: fraction of its peak that a step reaches.
        evals: evaluations per forward solve.
        products: vector-Jacobian products per backward solve.
        guessed: whether these two are the solvers' limits rather than figures of a run.
        measured: measurements on this machine; None if there are none.
        notes: what the plan leaves out.
    """

    recipe: Recipe
    reads: Reads
    size: Sizes
    gpus: int
    parallel: Parallel
    shards: int
    memory: int
    share: Share
    step: Step
    own: Step
    accumulate: int
    gpu: str
    mfu: float
    evals: float
    products: float
    guessed: bool
    measured: Measured | None
    notes: tuple[str, ...]

    @property
    def flops(self) -> float:
        """Operations per step and GPU."""
        return self.step.total(self.evals, self.products)

    @property
    def seconds(self) -> float:
        """Seconds per step, at the assumed or measured fraction of the peak."""
        return self.flops / (GPUS[self.gpu].at(self.recipe.precision) * self.mfu)

    @property
    def speed(self) -> float:
        """Units per second, over all GPUs."""
        return self.gpus * self.step.rows * self.reads.units / self.seconds

    def figure(self, name: str) -> Figure:
        """Return the figure with a given name.

        Raises:
            KeyError: there is none.
        """
        return {figure.name: figure for figure in self.figures()}[name]

    def figures(self) -> Iterator[Figure]:
        """Yield all figures, from the size of the model to the speed of training."""
        yield from self._model()
        yield from self._memory()
        yield from self._batch()
        yield from self._speed()

    def _model(self) -> Iterator[Figure]:
        yield Figure("parameters", self.size.all)
        if self.size.layer:
            yield Figure("parameters of the equilibrium layer", self.size.layer)
        yield Figure("GPUs", self.gpus, origin="given")
        yield Figure("memory of a GPU", self.memory, "B", "given")

    def _memory(self) -> Iterator[Figure]:
        split = f"1/{self.shards} of them" if self.shards > 1 else ""
        yield Figure("parameters, bytes", self.share.parameters, "B", note=split)
        yield Figure("gradients", self.share.gradients, "B", note=split)
        yield Figure("optimiser state", self.share.optimiser, "B", note=split)
        if self.share.communication:
            what = "upper bound: gathered parameters, gradients not yet reduced"
            note = what if self.shards > 1 else "gradients in DDP's buckets"
            yield Figure("communication", self.share.communication, "B", note=note)
        yield Figure("persistent memory", self.share.total, "B")
        if not self.size.layer:
            return
        solver, adjoint = self.recipe.solver, self.recipe.adjoint
        assert solver is not None and adjoint is not None
        row = self.step.rows
        per = "per sample or stream"
        yield Figure("state z", self.step.state / row, "B", note=per)
        yield Figure("one evaluation of f", self.step.evaluation / row, "B", note=per)
        yield Figure("f and its derivatives, backward", self.step.graph / row, "B", note=per)
        forward = parts.room_of(solver, solver.max_evals).lasting
        yield Figure("history of the forward solve", forward, "|z|", note=type(solver).__name__)
        linear = getattr(adjoint, "linear", None)
        if linear is not None:
            count = parts.room_of(linear, linear.max_evals).lasting
            yield Figure("history of the backward solve", count, "|z|", note=type(linear).__name__)

    def _batch(self) -> Iterator[Figure]:
        more = "or more: the search ends here" if self.step.rows == MOST else ""
        yield Figure(f"{self._rows} that fit per GPU", self.step.rows, note=more)
        yield Figure(f"{self._rows} that fit in total", self.gpus * self.step.rows)
        yield Figure("peak of such a step", self.step.peak, "B")
        for part, count in sorted(self.step.at_peak.items(), key=lambda item: -item[1]):
            yield Figure(f"- {part}", count, "B")
        yield Figure("batch_size of the recipe", self.recipe.rows, origin="given")
        yield Figure("accumulate needed for it", self.accumulate)
        yield Figure("peak per GPU at that batch", self.share.total + self.own.peak, "B")

    def _speed(self) -> Iterator[Figure]:
        origin: Origin = "assumed" if self.guessed else "given"
        if self.size.layer:
            note = "the solvers' limits" if self.guessed else ""
            yield Figure("evaluations per forward solve", self.evals, "", origin, note)
            yield Figure("products per backward solve", self.products, "", origin, note)
        yield Figure("operations per step and GPU", self.flops, "FLOP")
        measured = self.measured
        of_peak = measured is not None and measured.mfu is not None
        peak = GPUS[self.gpu].at(self.recipe.precision)
        yield Figure(
            f"peak of one {self.gpu}", peak, "FLOP/s", "given", "as stated by the manufacturer"
        )
        yield Figure("fraction of the peak", self.mfu, "", "measured" if of_peak else "assumed")
        yield Figure("time per step", self.seconds, "s", note="without communication")
        unit = f"{self.reads.unit}/s"
        yield Figure("speed", self.speed, unit, note="over all GPUs, without communication")
        if measured is not None:
            yield from measured.lines(Figure, self.reads, self.step, self.evals, self.products)

    @property
    def _rows(self) -> str:
        return "streams" if self.reads.streams else "samples"

    def json(self) -> dict[str, Any]:
        """Return the plan as plain numbers and strings."""
        return {
            "data": self.reads.origin,
            "gpus": self.gpus,
            "parallel": self.parallel,
            "shards": self.shards,
            "precision": self.recipe.precision,
            "figures": [asdict(each) for each in self.figures()],
            "notes": list(self.notes),
        }


def plan(
    recipe: Recipe,
    *,
    gpus: int = 1,
    memory: float = 80e9,
    parallel: Parallel = "ddp",
    per_machine: int = 8,
    gpu: str = "A100",
    mfu: float | None = None,
    evals: float | None = None,
    products: float | None = None,
    measure: Callable[[Reads, Recipe], Measured] | None = None,
    data_dir: Path | None = None,
) -> Plan:
    """Compute what training a recipe takes on given GPUs, without access to them.

    Nothing of the model's size is allocated: a step is traced on tensors with shapes but no data,
    with the real cell, loss and gradient. A solve is replaced by one evaluation next to a history
    as large as the solver needs at its `max_evals`.

    Args:
        recipe: what to train.
        gpus: number of GPUs, over all machines.
        memory: bytes of each.
        parallel: ddp, everything on every GPU; fsdp, parameters, gradients and optimiser state
            sharded over all GPUs; hsdp, over those of a machine.
        per_machine: GPUs per machine.
        gpu: a name in `hardware.GPUS`.
        mfu: fraction of its peak that a step reaches; None for that found by `measure`, or 0.3.
        evals: evaluations per forward solve; None for the solver's limit.
        products: vector-Jacobian products per backward solve; None likewise.
        measure: times the parts of a step on this machine.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.

    Raises:
        PlanError: the model alone does not fit, or not even with a single sample; the GPUs cannot
            be divided into equal machines; or the GPU is unknown.
        ConfigError: the task's batches do not consist of equal samples.
    """
    if parallel not in get_args(Parallel):
        raise PlanError(f"parallel must be one of {', '.join(get_args(Parallel))}; got {parallel}")
    if gpu not in GPUS:
        raise PlanError(f"gpu must be one of {', '.join(GPUS)}; got {gpu}")
    shards = _shards(parallel, gpus, per_machine)
    read = reads(recipe, data_dir)
    size = sizes(model_of(read, recipe))
    share = Share.of(size, recipe.optimiser, parallel, shards, gpus)
    room = int(USABLE * memory) - share.total
    if room <= 0:
        raise PlanError(
            f"parameters, gradients and optimiser state alone take {_gb(share.total)} on each GPU, "
            f"where {_gb(USABLE * memory)} of {_gb(memory)} are usable: " + _remedy(gpus, shards)
        )
    known: dict[int, Step] = {}

    def step(rows: int) -> Step:
        if rows not in known:
            known[rows] = trace(read, recipe, rows, on_gpu=True)
        return known[rows]

    rows = largest(lambda rows: step(rows).peak, room)
    if rows == 0:
        raise PlanError(
            f"a step with one sample takes {_gb(step(1).peak)} on top of the {_gb(share.total)} "
            f"for parameters, gradients and optimiser state, but only {_gb(USABLE * memory)} of a "
            "GPU are usable: use more memory, or smaller samples"
        )
    each = -(-recipe.rows // gpus)
    accumulate = max(recipe.accumulate, -(-each // rows))
    found = None if measure is None else measure(read, recipe)
    if mfu is None:
        mfu = MFU if found is None or found.mfu is None else found.mfu
    solver, adjoint = recipe.solver, recipe.adjoint
    limits = (0, 0)
    if solver is not None and adjoint is not None:
        limits = (solver.max_evals, parts.products(adjoint))
    return Plan(
        recipe=recipe,
        reads=read,
        size=size,
        gpus=gpus,
        parallel=parallel,
        shards=shards,
        memory=int(memory),
        share=share,
        step=step(rows),
        own=step(max(1, -(-each // accumulate))),
        accumulate=accumulate,
        gpu=gpu,
        mfu=mfu,
        evals=limits[0] if evals is None else evals,
        products=limits[1] if products is None else products,
        guessed=evals is None,
        measured=found,
        notes=tuple(_notes(recipe, read, gpus)),
    )


def largest(peak: Callable[[int], float], room: float) -> int:
    """Return the largest number of rows whose peak is at most `room`; 0 if one row is too many.

    The peak grows with the rows; the search interpolates linearly between known peaks.
    """
    if peak(1) > room:
        return 0
    low, high, ahead = 1, MOST + 1, 8
    while high - low > 1 and low < MOST:
        if high > MOST:
            guess = min(ahead, MOST)
            if low > 1:
                slope = (peak(low) - peak(1)) / (low - 1)
                guess = low + int((room - peak(low)) / slope) + 1 if slope else MOST
            guess = min(max(guess, low + 1), MOST)
        else:
            share = (room - peak(low)) / (peak(high) - peak(low))
            guess = min(max(low + int(share * (high - low)), low + 1), high - 1)
        if peak(guess) <= room:
            low = guess
        else:
            high = guess
    return low


def _remedy(gpus: int, shards: int) -> str:
    """What to do about parameters that do not fit."""
    if shards > 1:
        return "use more GPUs, or GPUs with more memory"
    more = "" if gpus > 1 else "use several GPUs and "
    return f"use GPUs with more memory, or {more}shard them with --parallel fsdp"


def _shards(parallel: Parallel, gpus: int, per_machine: int) -> int:
    if parallel == "ddp":
        return 1
    if parallel == "fsdp":
        return gpus
    if gpus % per_machine or gpus == per_machine:
        raise PlanError(
            f"hsdp shards parameters within a machine and replicates them across machines: {gpus} "
            f"GPUs, {per_machine} per machine, do not fill several machines exactly; use fsdp"
        )
    return per_machine


def _states(optimiser: Optimiser) -> int:
    """Return how many numbers an optimiser stores per parameter."""
    return int(optimiser.momentum > 0) if isinstance(optimiser, SGD) else 2


def _notes(recipe: Recipe, read: Reads, gpus: int) -> Iterator[str]:
    """Yield what a plan assumes or leaves out, and what `train` would refuse."""
    if recipe.rows % gpus:
        yield (
            f"train refuses batch_size {recipe.rows} on {gpus} GPUs, since it is not divisible by "
            f"their number: set --batch-size {gpus * -(-recipe.rows // gpus)}, for example"
        )
    if read.shares:
        shares = ", ".join(f"{100 * share:.1f} %" for share in read.shares)
        yield f"fraction of tokens in each cluster of the softmax: {shares}"
    for key in ("regulariser", "correction", "pretrain", "neural"):
        if getattr(recipe, key) is not None:
            yield f"{key} is not counted"


def _gb(count: float) -> str:
    digits = 1 if not math.isfinite(count) or count >= 1e8 else 3
    return f"{count / 1e9:,.{digits}f} GB"
