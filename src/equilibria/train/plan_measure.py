"""The parts of a training step, measured on this machine."""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.models import Model
from equilibria.nn import using
from equilibria.solve import Adjoint, JacobianFree, NeumannPhantom, Solver
from equilibria.stability.peak import peak_bytes
from equilibria.train.evaluation import widened
from equilibria.train.hardware import peak_of
from equilibria.train.plan_inputs import Reads
from equilibria.train.plan_step import HALF, Step, trace
from equilibria.train.recipe import Recipe

__all__ = ["Measured", "measure"]

FEW, MANY = 2, 6
"""Evaluations of the two steps whose difference gives the time of one; products likewise."""

REPEATS = 3
"""Steps of each kind; the median time counts."""


@dataclass(frozen=True)
class Measured:
    """Measured times of the parts of a step with `rows` rows, and its memory.

    Attributes:
        device: where it was measured.
        rows: samples or streams.
        rest: seconds of everything that does not depend on the number of evaluations.
        evaluation: seconds per evaluation of f, including the solver's own work.
        product: seconds per vector-Jacobian product.
        bytes: peak of a step with `MANY` evaluations.
        computed: the same, as computed by `trace`.
        mfu: fraction of the device's peak; None if that is unknown.
    """

    device: str
    rows: int
    rest: float
    evaluation: float
    product: float
    bytes: int
    computed: int
    mfu: float | None

    def seconds(self, rows: int, evals: float, products: float) -> float:
        """Return the seconds of a step, taken to be proportional to its rows."""
        each = self.rest + evals * self.evaluation + products * self.product
        return each * rows / self.rows

    def lines(
        self, figure: Callable[..., Any], reads: Reads, step: Step, evals: float, products: float
    ) -> Iterator[Any]:
        """Yield the figures, created by `figure`, which is `plan.Figure`."""
        many, here = f"{self.rows} rows", f"on {self.device}"
        yield figure("one evaluation of f, here", self.evaluation, "s", "measured", many)
        yield figure("one product, here", self.product, "s", "measured", many)
        yield figure("the rest of a step, here", self.rest, "s", "measured", many)
        few = f"{many}, {MANY} evaluations"
        yield figure("bytes of a step, here", self.bytes, "B", "measured", few)
        yield figure("the same, computed", self.computed, "B", "computed", few)
        speed = self.rows * reads.units / self.seconds(self.rows, evals, products)
        note = f"{here}, from the measured parts"
        yield figure("speed here", speed, f"{reads.unit}/s", "computed", note)


def measure(reads: Reads, recipe: Recipe, rows: int, device: torch.device) -> Measured:
    """Time steps of a recipe on a device, and measure their memory.

    Weights and data are random; the recipe's own solver is run for a fixed number of evaluations.
    The time of one evaluation follows from the difference of two steps.

    Args:
        reads: the inputs of a step.
        recipe: of a model with an equilibrium layer, or of an explicit network.
        rows: samples or streams.
        device: where to measure.
    """
    torch.manual_seed(recipe.seed)
    model = reads.config.build(**recipe.layer()).to(device).train()
    inputs, targets = pytree.tree_map_only(Tensor, lambda x: x.to(device), drawn(reads, rows))
    half = HALF.get(recipe.precision)
    cast = lambda: torch.autocast(device.type, half, enabled=half is not None)  # noqa: E731
    with warnings.catch_warnings(), torch.no_grad(), cast():
        warnings.simplefilter("ignore")
        carry = _carry(model, recipe, inputs) if reads.streams else None

    def step() -> None:
        with cast():
            prediction = model(inputs, carry=carry)
            loss = reads.loss(model, widened(prediction.output), targets)
        loss.backward()

    solver = recipe.solver
    if solver is None:
        rest, took = _timed([step], device)[0], peak_bytes(step, device)
        computed = trace(reads, recipe, rows)
        share = _share(computed.total(0, 0), rest, device, recipe)
        carried = computed.peak - computed.carried
        return Measured(device.type, rows, rest, 0.0, 0.0, took, carried, share)
    few, many = _limited(solver, FEW), _limited(solver, MANY)
    kinds: list[tuple[Solver, Adjoint]] = [
        (few, JacobianFree()),
        (many, JacobianFree()),
        (few, NeumannPhantom(steps=1 + MANY - FEW, damping=1.0)),
    ]

    def of(solver: Solver, adjoint: Adjoint) -> Callable[[], None]:
        def run() -> None:
            with using(model, solver, adjoint):
                step()

        return run

    shallow, deep, multiplied = _timed([of(*kind) for kind in kinds], device)
    evaluation = max(0.0, (deep - shallow) / (MANY - FEW))
    product = max(0.0, (multiplied - shallow) / (MANY - FEW))
    rest = max(0.0, shallow - FEW * evaluation)
    limited = dataclasses.replace(recipe, solver=many, adjoint=JacobianFree())
    computed = trace(reads, limited, rows, on_gpu=device.type == "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        took = peak_bytes(of(many, JacobianFree()), device)
    share = _share(computed.total(MANY, 0), deep, device, recipe)
    carried = computed.peak - computed.carried  # which the real step has allocated beforehand
    return Measured(device.type, rows, rest, evaluation, product, took, carried, share)


def drawn(reads: Reads, rows: int) -> tuple[Any, Any]:
    """Return inputs and targets of `rows` samples: those that were read, repeated, or random ones
    for named data."""
    vocabulary = getattr(reads.config, "vocabulary", None)

    def of(x: Tensor) -> Tensor:
        shape = (rows, *x.shape[1:])
        if reads.unit == "tokens" and vocabulary and not x.any():
            return _tokens(reads, shape, vocabulary)
        if x.is_floating_point() and not x.any():
            return torch.randn(shape, dtype=x.dtype)
        return x.expand(shape).clone()

    return pytree.tree_map_only(Tensor, of, reads.one)


def _tokens(reads: Reads, shape: tuple[int, ...], vocabulary: int) -> Tensor:
    """Random tokens, distributed over the clusters of the softmax according to `Reads.shares`."""
    if not reads.shares:
        return torch.randint(vocabulary, shape)
    edges = (0, *cast(Any, reads.config).cutoffs, vocabulary)
    count = torch.tensor(shape).prod().item()
    cluster = torch.multinomial(torch.tensor(reads.shares), int(count), replacement=True)
    low, size = (
        torch.tensor(x) for x in zip(*((a, b - a) for a, b in pairwise(edges)), strict=True)
    )
    inside = torch.rand(int(count), dtype=torch.float64) * size[cluster]
    return (low[cluster] + inside.long()).view(shape)


def _limited(solver: Solver, evals: int) -> Solver:
    """The solver, made to take exactly `evals` evaluations."""
    return dataclasses.replace(solver, rtol=0.0, atol=0.0, max_evals=evals, patience=None)


def _carry(model: Model, recipe: Recipe, inputs: Any) -> Any:
    """What a model carries over to a batch that follows `inputs`."""
    if recipe.solver is None:
        return model(inputs).carry
    with using(model, _limited(recipe.solver, 1)):
        return model(inputs).carry


def _timed(steps: list[Callable[[], None]], device: torch.device) -> list[float]:
    """Median time of each step, in seconds; the steps are interleaved."""
    took: list[list[float]] = [[] for _ in steps]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # solves are stopped early on purpose
        for turn in range(REPEATS + 1):
            for step, times in zip(steps, took, strict=True):
                _wait(device)
                begin = time.perf_counter()
                step()
                _wait(device)
                if turn:  # the first allocates the gradients
                    times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in took]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _share(flops: float, seconds: float, device: torch.device, recipe: Recipe) -> float | None:
    peak = peak_of(device, recipe.precision)
    return None if peak is None else flops / seconds / peak
