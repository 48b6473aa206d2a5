"""What the recurrent weights of a cell give at its fixed point: every product with one is seen."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from equilibria.nn.frozen import Frozen
from equilibria.nn.init import RecurrentWeight, set_weights
from equilibria.stability.settled import Settled

__all__ = ["Mapped", "applied", "mapped"]

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


def mapped(weights: Sequence[RecurrentWeight], settled: Settled) -> tuple[Mapped, ...]:
    """Measure what the weights give at the fixed points of a batch."""
    rows = []
    for weight, seen in zip(weights, _products(weights, settled, settled.z), strict=True):
        total = sum(float(h.double().square().sum()) for h in seen)
        count = sum(h.numel() for h in seen)
        rows.append(Mapped(weight.path, total / count if count else math.nan))
    return tuple(rows)


def applied(weights: Sequence[RecurrentWeight], settled: Settled) -> list[bool]:
    """Tell which weights are applied to the state, and not to the input alone.

    The cell is evaluated at two states: what gives the same is applied to the input alone. A weight
    whose products cannot be seen, or are zero at both, counts as applied to the state. Weights that
    are zero let nothing through to those behind them, and have other values meanwhile.

    Args:
        weights: of `recurrent_weights`, of a copy of the model.
        settled: the one state, of the copy; it need not be a fixed point.
    """
    generator = torch.Generator().manual_seed(0)

    def moved(z: Tensor) -> Tensor:
        noise = torch.randn(z.shape, dtype=z.dtype, generator=generator).to(z.device)
        return z + noise * (0.1 * z.square().mean().sqrt() + 0.01)

    with _open(weights, generator):
        at = _products(weights, settled, settled.z)
        beside = _products(weights, settled, pytree.tree_map(moved, settled.z))
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
