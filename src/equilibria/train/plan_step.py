"""Memory and operations of one training step, found without allocating or computing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from equilibria.models import EquilibriumModel, Model, Prediction
from equilibria.models.sequence.base import SequenceModel
from equilibria.nn import using
from equilibria.train import plan_solve as parts
from equilibria.train.config import ConfigError
from equilibria.train.evaluation import widened
from equilibria.train.plan_inputs import Reads
from equilibria.train.plan_ledger import Ledger
from equilibria.train.recipe import Recipe

__all__ = ["Sizes", "Step", "model_of", "sizes", "trace"]

CARRY = "carry"
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters.

    Attributes:
        all: of the model.
        layer: of its equilibrium layer; 0 for an explicit network.
        buffers: bytes of the buffers.
    """

    all: int
    layer: int
    buffers: int


@dataclass(frozen=True)
class Step:
    """Needs of a step with `rows` rows on one process, excluding parameters and their gradients.

    Attributes:
        rows: samples or streams.
        peak: peak memory in bytes.
        at_peak: the same, by part.
        carried: bytes carried over to the next segment; part of `peak`.
        state: bytes of the largest state, |z|.
        evaluation: bytes allocated by one evaluation of f without a graph.
        graph: bytes allocated by one evaluation of f and its derivatives.
        flops: operations by part; see `total`.
        solves: number of consecutive solves per step.
    """

    rows: int
    peak: int
    at_peak: Mapping[str, int]
    carried: int
    state: int
    evaluation: int
    graph: int
    flops: Mapping[str, int]
    solves: int = 0
    names: tuple[str, ...] = field(
        default=(parts.FIRST, parts.EVALUATION, parts.PRODUCT), repr=False
    )

    @property
    def one_evaluation(self) -> int:
        """Operations of one evaluation of f, summed over the solves of a step."""
        return self.flops.get(parts.EVALUATION, 0)

    @property
    def one_product(self) -> int:
        """Operations of one vector-Jacobian product, summed over the solves of a step."""
        return self.flops.get(parts.PRODUCT, 0)

    @property
    def rest(self) -> int:
        """Operations that do not depend on the number of evaluations."""
        return sum(count for part, count in self.flops.items() if part not in self.names)

    def total(self, evals: float, products: float) -> float:
        """Return the operations of a step.

        Args:
            evals: evaluations of f per forward solve.
            products: vector-Jacobian products per backward solve.
        """
        return self.rest + evals * self.one_evaluation + products * self.one_product


def model_of(reads: Reads, recipe: Recipe) -> Model:
    """Build a recipe's model on the meta device, which allocates nothing."""
    with torch.device("meta"):
        return reads.config.build(**recipe.layer())


def sizes(model: Model) -> Sizes:
    """Return the numbers of parameters of a model."""
    layer = model.deq if isinstance(model, EquilibriumModel) else None
    return Sizes(
        sum(p.numel() for p in model.parameters()),
        0 if layer is None else sum(p.numel() for p in layer.parameters()),
        sum(b.numel() * b.element_size() for b in model.buffers()),
    )


def trace(
    reads: Reads, recipe: Recipe, rows: int, *, on_gpu: bool = False, quick: bool = False
) -> Step:
    """Trace a training step of a recipe on tensors with shapes but no data.

    The model runs as in training, except that `StandIn` replaces its solves. The batch is one that
    follows another, so that there is a carry.

    Args:
        reads: the inputs of a step.
        recipe: gives model, solver, adjoint and precision.
        rows: samples or streams on this process; at least two are taken for models with a
            BatchNorm, which cannot train on one.
        on_gpu: also count what solves hold on a GPU but not on a CPU.
        quick: use meta tensors, without autocast: enough for operations but not for bytes, since
            some functions use a different implementation there.

    Raises:
        ConfigError: the step depends on the values in its tensors.
    """
    try:
        return _trace(reads, recipe, rows, on_gpu, quick)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ConfigError(
            f"the cost of a step of {type(recipe.model).__name__} depends on the values in its "
            f"tensors ({error.func}), not only on their shapes: measure it with "
            "`equilibria memory RUN`"
        ) from error


def _trace(reads: Reads, recipe: Recipe, rows: int, on_gpu: bool, quick: bool) -> Step:
    model, ledger, half = model_of(reads, recipe), Ledger(), HALF.get(recipe.precision)
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        rows = max(rows, 2)
    mode = nullcontext() if quick else _passing(model)
    with torch.device("meta" if quick else "cpu"), mode, _whole_clusters(model, reads.shares):
        inputs, targets = reads.batch(rows)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        stand_in = None
        if recipe.solver is not None and recipe.adjoint is not None:
            stand_in = parts.StandIn(
                ledger=ledger, solver=recipe.solver, adjoint=recipe.adjoint, on_gpu=on_gpu
            )
        with using(model.train(), adjoint=stand_in):
            cast = torch.autocast("cpu", half, enabled=half is not None and not quick)
            carry = None
            if reads.streams:
                with cast:
                    carry = model(inputs).carry
            lasting = [model.state_dict(keep_vars=True), [p.grad for p in model.parameters()]]
            ledger.know([inputs, targets, lasting])
            ledger.flops.clear()
            carried = _bytes(carry)
            ledger.know(carry)
            with ledger:
                ledger.enter("injection")
                with cast:
                    prediction = model(inputs, carry=carry)
                    if not prediction.solutions:
                        ledger.enter(parts.READOUT)
                    total = _loss(reads, model, prediction, targets)
                ledger.enter("backward")
                total.backward()
    peak = Counter(ledger.at_peak)
    peak[CARRY] += carried
    states = [_bytes(solution.value) for solution in prediction.solutions]
    return Step(
        rows,
        ledger.peak + carried,
        {part: count for part, count in peak.items() if count},
        carried,
        max(states, default=0),
        ledger.most[parts.EVALUATION],
        ledger.most[parts.LINEARISED],
        dict(ledger.flops),
        len(states),
    )


def _loss(reads: Reads, model: Model, prediction: Prediction, targets: Any) -> Tensor:
    """Return the training loss; see `evaluation.loss_of`."""
    loss = reads.loss(model, widened(prediction.output), targets)
    if not prediction.auxiliary or not reads.weight:
        return loss
    each = [reads.loss(model, widened(part), targets) for part in prediction.auxiliary]
    return loss + reads.weight * torch.stack(each).mean()


def _passing(model: Model) -> FakeTensorMode:
    """Replace a model's meta tensors, which autocast does not support, by fake CPU tensors, which
    hold no data either; return their mode."""
    mode, made = FakeTensorMode(allow_non_fake_inputs=True), dict[int, Tensor]()

    def of(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            with mode:
                new = torch.empty(tensor.shape, dtype=tensor.dtype)
            trained = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if trained else new
        return made[id(tensor)]

    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    store[name] = of(tensor)  # pyright: ignore[reportArgumentType]
    return mode


@contextmanager
def _whole_clusters(model: Model, shares: Sequence[float]) -> Iterator[None]:
    """Fix how many tokens an adaptive softmax finds in each cluster, which depends on the data."""
    if not (shares and isinstance(model, SequenceModel)):
        yield
        return

    def places(flat: Tensor) -> list[Tensor]:
        rare = [round(share * len(flat)) for share in shares[1:]]
        return list(torch.arange(len(flat)).split([len(flat) - sum(rare), *rare]))

    vars(model.lexicon)["_places"] = places
    try:
        yield
    finally:
        del vars(model.lexicon)["_places"]


def _bytes(tree: Any) -> int:
    leaves = (x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor))
    return sum(x.numel() * x.element_size() for x in leaves)
