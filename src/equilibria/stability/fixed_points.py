"""A module's layer at its fixed points on one batch, for measurements there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from equilibria.nn import DEQ, using
from equilibria.nn.frozen import Frozen
from equilibria.nn.init import RecurrentWeight, set_weights
from equilibria.solve import Broyden, Implicit, Picard, Shared, Status, followable
from equilibria.stability.examined import LayerCall, Patient

BUDGET = 1000
"""Evaluations that a solve may take, at least: plain iteration takes 600 at a radius of .98."""


@dataclass(frozen=True)
class Settled:
    """The solved samples of a batch: z* and the operands that belong to it.

    Attributes:
        layer: whose cell it is a fixed point of.
        z: z* of the solved samples; None if there are none.
        operands: of the cell, for these.
        solved: (samples,) bool, which they are.
    """

    layer: DEQ
    z: Any
    operands: tuple[Any, ...]
    solved: Tensor

    @classmethod
    def of(cls, layer: DEQ, seen: LayerCall, found: Tensor) -> Settled:
        """Take the solved samples, those with `found` (samples,), out of a call."""
        found = found.cpu()
        if bool(found.all()):
            return cls(layer, seen.solution.value, seen.operands, found)
        if not bool(found.any()):
            return cls(layer, None, (), found)
        z, operands = (_rows(tree, found) for tree in (seen.solution.value, seen.operands))
        return cls(layer, z, operands, found)

    @property
    def cell(self) -> Callable[..., Any]:
        return self.layer.cell

    @property
    def plain(self) -> tuple[Any, ...]:
        """The operands as the cell gets them."""
        return tuple(o.value if isinstance(o, Shared) else o for o in self.operands)

    def spread(self, values: Tensor) -> Tensor:
        """Put values of the solved samples in their places of the batch, among NaN."""
        out = torch.full(self.solved.shape, torch.nan, dtype=torch.float64)
        out[self.solved] = values.detach().double().cpu()
        return out


def copy_patient(model: nn.Module, inputs: tuple[Any, ...]) -> Patient:
    """A copy in eval mode to measure on, made within `as_it_is`; see `Patient`."""
    patient = Patient.admit(model, pytree.tree_map_only(Tensor, followable, inputs))
    patient.layer.adjoint = Implicit()  # others answer with another iterate
    return patient


def settle(patient: Patient, rtol: float) -> Settled:
    """Solves by the layer's own solver and, where that fails, by Broyden's.

    Args:
        patient: of `copy_patient`.
        rtol: relative residual at which a sample counts as solved.
    """
    layer = patient.layer
    used = layer.eval_solver or layer.solver
    budget = max(BUDGET, used.max_evals)
    with using(layer, replace(used, rtol=rtol, atol=0.0, max_evals=budget)):
        seen = patient.call()
    found = seen.solution.status == Status.CONVERGED
    if not bool(found.all()):
        # From the start, for the best iterate of a method that fails can be anywhere.
        with using(layer, Broyden(rtol=rtol, max_evals=budget, memory=50)):
            again = patient.call()
        found_again = again.solution.status == Status.CONVERGED
        use = ~found & found_again
        merged = pytree.tree_map(
            lambda a, b: torch.where(_rowwise(use, a), b, a),
            seen.solution.value,
            again.solution.value,
        )
        seen = replace(seen, solution=replace(seen.solution, value=merged))
        found = found | found_again
    return Settled.of(layer, seen, found)


def begin_unsolved(patient: Patient, which: Tensor | None = None) -> Settled:
    """The layer at its own start, in place of the fixed points: no sample is solved.

    Args:
        patient: whose layer it is.
        which: (samples,) bool, the samples to take; None for all.
    """
    layer = patient.layer
    with using(layer, Picard(max_evals=1)):  # answers with the one iterate that it evaluates
        seen = patient.call()
    nobody = torch.zeros_like(seen.solution.status, dtype=torch.bool, device="cpu")
    z, operands = seen.solution.value, seen.operands
    if which is not None and not bool(which.all()):
        (z, operands), nobody = _rows((z, operands), which), nobody[which.cpu()]
    return Settled(layer, z, operands, nobody)


@contextmanager
def as_it_is(model: nn.Module) -> Iterator[None]:
    """Leaves torch's random generators as they were; nothing inside has a gradient.

    Whatever mode the caller is in: inference mode, in which nothing can be differentiated, and
    autocast, whose bfloat16 has no residual as small as is asked for, end inside.
    """
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    kinds = {"cpu"} | {p.device.type for p in model.parameters()}
    with ExitStack() as stack:
        for kind in sorted(kinds):
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())  # which the end of inference mode would undo
        stack.enter_context(torch.random.fork_rng(devices=sorted(devices)))
        yield


def _rows(tree: Any, which: Tensor) -> Any:
    """The rows of some samples in all tensors but those that all samples share."""
    index = which.nonzero().flatten()

    def pick(x: Any) -> Any:
        own = isinstance(x, Tensor) and not isinstance(x, Shared)
        return x.index_select(0, index.to(x.device)) if own else x

    return pytree.tree_map(pick, tree)


def _rowwise(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of samples, to be broadcast over their entries; of one sample for a coupled batch."""
    mask = mask.to(like.device)
    return mask.reshape(-1, *(1 for _ in like.shape[1:]))


# --- applied --------------------------------------------------------------------------------------

# What the recurrent weights of a cell give at its fixed point: every product with one is seen.


aten = torch.ops.aten

ADDED = {aten.addmm: aten.mm, aten.addmv: aten.mv, aten.baddbmm: aten.bmm}
"""Products that add to something, such as a bias or the injection, and the same without it."""
PRODUCTS = {aten.mm, aten.mv, aten.bmm, aten.linear, aten.convolution}


@dataclass(frozen=True)
class Mapped:
    """What a recurrent weight W gives at z*.

    Attributes:
        path: of the weight in the model.
        mean_square: of the entries of h* = W z*, without bias and injection, over samples, and
            over all that W is applied to: h*.h* / N of a state of N entries. NaN where the cell
            does not multiply by it as it is, as under a fused operation.
    """

    path: str
    mean_square: float


def measure_weights(weights: Sequence[RecurrentWeight], settled: Settled) -> tuple[Mapped, ...]:
    """Measure what the weights give at the fixed points of a batch."""
    rows = []
    for weight, seen in zip(weights, _products(weights, settled, settled.z), strict=True):
        total = sum(float(h.double().square().sum()) for h in seen)
        count = sum(h.numel() for h in seen)
        rows.append(Mapped(weight.path, total / count if count else math.nan))
    return tuple(rows)


def find_applied(weights: Sequence[RecurrentWeight], settled: Settled) -> list[bool]:
    """Tell which weights are applied to the state, and not to the input alone.

    The cell is evaluated at two states: what gives the same is applied to the input alone. A weight
    whose products cannot be seen, or are zero at both, counts as applied to the state. Weights that
    are zero let nothing through to those behind them, and have other values meanwhile.

    Args:
        weights: of `recurrent_weights`, of a copy of the model.
        settled: the one state, of the copy; it need not be a fixed point.
    """
    generator = torch.Generator().manual_seed(0)

    def perturb(z: Tensor) -> Tensor:
        noise = torch.randn(z.shape, dtype=z.dtype, generator=generator).to(z.device)
        return z + noise * (0.1 * z.square().mean().sqrt() + 0.01)

    with _open(weights, generator):
        at = _products(weights, settled, settled.z)
        beside = _products(weights, settled, pytree.tree_map(perturb, settled.z))
    return [
        not (len(a) == len(b) and all(map(torch.equal, a, b)) and any(h.any() for h in a))
        for a, b in zip(at, beside, strict=True)
    ]


@contextlib.contextmanager
def _open(weights: Sequence[RecurrentWeight], generator: torch.Generator) -> Iterator[None]:
    """Gives the weights that are zero random values, and takes these back."""
    closed = [(w, value) for w in weights if not (value := w.value()).any()]
    kept = [(tensor, tensor.detach().clone()) for w, _ in closed for tensor in w.tensors()]
    try:
        for weight, value in closed:
            noise = torch.randn(value.shape, dtype=value.dtype, generator=generator)
            with contextlib.suppress(ValueError):  # one that cannot be set stays
                set_weights([(weight, noise.to(value.device) / value[0].numel() ** 0.5)])
        yield
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)


@torch.enable_grad()  # without gradients, torch's attention would be one fused operation
def _products(weights: Sequence[RecurrentWeight], settled: Settled, z: Any) -> list[list[Tensor]]:
    """The products with each weight in one evaluation of the cell."""
    frozen = Frozen(settled.cell)
    with frozen.evaluation():  # in which a normalised weight is one tensor
        places = [getattr(weight.layer, weight.name) for weight in weights]
        with _Watch(places) as watch:
            settled.cell(z, *settled.plain)
    return watch.products


class _Watch(TorchDispatchMode):
    """Keeps every product of one of some tensors, or of a part of it, with another tensor.

    Layers are not asked: a cell may take the weight of one and multiply by it itself.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.spans = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors]
        self.tensors = tensors
        self.products: list[list[Tensor]] = [[] for _ in tensors]

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func.overloadpacket
        out = func(*args, **(kwargs or {}))
        if kind in ADDED:
            if (place := self.place(args[1:3])) is not None:
                self.products[place].append(ADDED[kind](*args[1:3]).detach())
        elif kind in PRODUCTS and (place := self.place(args[:2])) is not None:
            bare = len(args) < 3 or args[2] is None
            product = out if bare else func(*args[:2], None, *args[3:], **(kwargs or {}))
            self.products[place].append(product.detach().clone())
        return out

    def place(self, factors: Sequence[Any]) -> int | None:
        """Which of the tensors one of the factors is part of."""
        for factor in factors:
            for i, (begin, end) in enumerate(self.spans):
                if begin <= factor.data_ptr() < end:
                    return i
        return None
