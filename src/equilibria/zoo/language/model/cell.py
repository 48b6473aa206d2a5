"""What the cells of sequence models have in common, and the causal injection that feeds them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.checks import check_within
from equilibria.nn.init import Maps, fill
from equilibria.zoo.language.model.base import SequenceConfig, SequenceModel, require_batch

# --- initial --------------------------------------------------------------------------------------

# How the weights of a cell begin.


Ensemble = Literal["normal", "gaussian", "orthogonal", "goe", "antisymmetric"]
"""`normal`: independent entries of standard deviation `scale`, as in the papers. The others are the
ensembles of `equilibria.nn.init`, where `scale` is sqrt(V). That of normal matrices there, which
has the name too, is for `equilibria.nn.init.initialize` and a recipe's `initialization`."""

SCALES: dict[str, float] = {
    "normal": 0.01,
    "gaussian": 1.0,
    "orthogonal": 1.0,
    "goe": 0.5,
    "antisymmetric": 0.5,
}


def scale_of(initial: str, scale: float | None) -> float:
    """The scale where None stands for the papers' 0.01, or for an ensemble's critical value.

    Raises:
        ValueError: there is no such ensemble, or the scale is negative.
    """
    if initial not in SCALES:
        raise ValueError(f"initial must be one of {', '.join(SCALES)}, got '{initial}'")
    if scale is not None:
        check_within("[0, inf)", scale=scale)
    return SCALES[initial] if scale is None else scale


@torch.no_grad()
def initialize(
    linear: nn.Linear,
    initial: Ensemble,
    scale: float,
    rows: Sequence[int] | None = None,
    columns: int = 1,
) -> None:
    """Fill the weight of a linear map, in place, and set its bias to zero.

    Args:
        linear: weight (outputs, inputs); not normalised yet.
        initial: the ensemble; one that needs square matrices gives way to `gaussian` for a map that
            is not square.
        scale: see `Ensemble`.
        rows: outputs of each of the maps that the weight holds one below the other, such as query,
            key and value; None for one.
        columns: maps that it holds side by side, such as the taps of a convolution. Each is a
            member of the ensemble.
    """
    if linear.bias is not None:
        linear.bias.zero_()
    if initial == "normal":
        linear.weight.normal_(0.0, scale)
        return
    fill(linear.weight.detach(), initial, scale, Maps(rows=tuple(rows or ()), columns=columns))


# --- cell -----------------------------------------------------------------------------------------


class SequenceCell(nn.Module, abc.ABC):
    """f(z; u, memory): one layer that an equilibrium is solved of, or that a stack applies.

    The injection u (batch, time, units) is what the layer gets of its input at each application.
    The memory is a tree of tensors that stand for the times before, first axis the batch; None at
    a beginning. What depends on no iterate is computed by `inject`, once, and `forward(z,
    *operands)` evaluates f.

    Attributes:
        units: features of the injection.
        features: features that `read` returns.
    """

    units: int
    features: int

    @abc.abstractmethod
    def inject(self, u: Tensor | None, memory: Any, like: Tensor | None = None) -> tuple[Any, ...]:
        """Return the operands of `forward`, made from the injection and the memory.

        Args:
            u: (batch, time, units); None where nothing is injected.
            memory: see the class.
            like: a state's tensor (batch, time, ...), for the shapes where u is None.
        """

    @abc.abstractmethod
    def start(self, u: Tensor, *operands: Any) -> Any:
        """Return the state of zeros, from the operands."""

    @abc.abstractmethod
    def read(self, z: Any) -> Tensor:
        """Return the features (batch, time, features) at a state."""

    @abc.abstractmethod
    def remember(self, z: Any, u: Tensor | None, memory: Any) -> Any:
        """Return the memory after this segment: of all of it, connected to the graph.

        Args:
            z: the state at the segment's end of solving.
            u: its injection.
            memory: that before the segment.
        """

    @abc.abstractmethod
    def keep(self, memory: Any) -> Any:
        """Return the part of a memory that the next segment needs; not detached."""


class CausalInjection(nn.Module):
    """u_t = sum_j W_j x_{t - (kernel - 1 - j) dilation} + b, a causal convolution of the input.

    Args:
        width: features of the input.
        units: features of the injection.
        kernel: times that are read; 1 is a linear map of each.
        dilation: distance between two times that are read.
    """

    def __init__(self, width: int, units: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(kernel * width, units)
        self.kernel = kernel
        self.dilation = dilation

    @property
    def span(self) -> int:
        """Times before the first that the convolution reads."""
        return (self.kernel - 1) * self.dilation

    def forward(self, x: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return u (batch, time, units) and the history of the next segment, detached.

        Args:
            x: (batch, time, width).
            history: of the segment before, (batch, span, width); None for zeros.
        """
        longer = extend(x, history, self.span)
        u = self.linear(windows(longer, self.kernel, self.dilation))
        return u, longer[:, longer.shape[1] - self.span :].detach()


@dataclass(frozen=True, kw_only=True)
class CellConfig(SequenceConfig, abc.ABC):
    """The architecture of a model around one kind of cell.

    Args:
        width: features of the embeddings.
    """

    width: int = 128

    @abc.abstractmethod
    def cell(self) -> SequenceCell:
        """Return a new cell."""

    @abc.abstractmethod
    def injection(self) -> CausalInjection:
        """Return a new injection of the embeddings into the cell."""

    @abc.abstractmethod
    def layer_injection(self) -> CausalInjection | None:
        """Return a new injection into one layer of an untied stack; None where there is none."""


def extend(x: Tensor, history: Tensor | None, span: int) -> Tensor:
    """x (batch, time, width) with `span` times before it: of the history, or zeros."""
    if not span:
        return x
    if history is None:
        return F.pad(x, (0, 0, span, 0))
    return torch.cat([history, x], 1)


def windows(x: Tensor, kernel: int, dilation: int) -> Tensor:
    """The `kernel` times that each time but the first ones reads, side by side.

    (batch, span + time, width) -> (batch, time, kernel * width), the earliest first.
    """
    if kernel == 1:
        return x
    time = x.shape[1] - (kernel - 1) * dilation
    return torch.cat([x[:, j * dilation : j * dilation + time] for j in range(kernel)], -1)


# --- injected -------------------------------------------------------------------------------------

# Sequence models around one cell: the injection, the memory and the carry between segments.


class InjectedModel(SequenceModel):
    """Tokens are embedded and injected into one cell, and the softmax reads the cell's state.

    The carry is a dict of `memory`, what the cell keeps of the states, and `history`, the last
    embeddings that the injection reads.

    Args:
        config: of the cell and the vocabulary.
        features: what the cell's state is read as.
    """

    def __init__(self, config: CellConfig, features: int) -> None:
        super().__init__(config, config.width, features)
        self.injection = config.injection()

    @property
    @abc.abstractmethod
    def the_cell(self) -> SequenceCell:
        """The cell that is solved or stacked."""

    def inject(self, x: Tensor, carry: Any = None) -> tuple[Any, ...]:
        """Return the operands of the cell: what its state depends on, computed once.

        Args:
            x: tokens (batch, time).
            carry: of the prediction on the segment before; None at a beginning.
        """
        u, memory, _ = self.inject_tokens(x, carry)
        return self.the_cell.inject(u, memory)

    def readout(self, z: Any) -> Tensor:
        """Return the features (batch, time, features) at a state, with dropout."""
        return self.output_dropout(self.the_cell.read(z))

    def inject_tokens(self, tokens: Tensor, carry: Any) -> tuple[Tensor, Any, Tensor]:
        """Return the injection (batch, time, units), the memory and the injection's history."""
        carry = carry or {}
        require_batch(carry, tokens)
        u, history = self.injection(self.embed(tokens), carry.get("history"))
        return u, carry.get("memory"), history

    def make_carry(self, memory: Any, history: Tensor) -> dict[str, Any] | None:
        """Return what the next segment needs, detached; None where it needs nothing."""
        carry = {"memory": self.the_cell.keep(memory)} if memory is not None else {}
        if carry.get("memory") is None:
            carry = {}
        if history.shape[1]:
            carry["history"] = history
        return detach_tree(carry) or None


def detach_tree(tree: Any) -> Any:
    """A tree of tensors cut off the graph, each in a storage of its own size."""
    return pytree.tree_map(lambda x: x.detach().clone(), tree)
