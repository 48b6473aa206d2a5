"""What the cells of sequence models have in common, and the causal injection that feeds them."""

import abc
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equilibria.zoo.language.model.config import SequenceConfig

__all__ = ["CausalInjection", "CellConfig", "SequenceCell"]


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
        longer = lengthened(x, history, self.span)
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


def lengthened(x: Tensor, history: Tensor | None, span: int) -> Tensor:
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
