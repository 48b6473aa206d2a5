"""What a recurrent cell is: an injection of all inputs at once, and one step in time."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from equilibria.solve import Solution

State = tuple[Tensor, ...]
"""What a cell carries from step to step: tensors (batch, hidden), the output first."""

Activation = Literal["tanh", "relu", "sigmoid"]

activations: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}
"""The function of each name."""


def phi_of(activation: str) -> Callable[[Tensor], Tensor]:
    """Return the function of a name, or raise ValueError."""
    if activation not in activations:
        known = ", ".join(activations)
        raise ValueError(f"activation must be one of {known}; got {activation!r}")
    return activations[activation]


class Sweep(NamedTuple):
    """What a cell makes of whole sequences."""

    output: Tensor
    """(time, batch, hidden); after the end of a shorter sequence undefined."""
    state: State
    """After the last step of each sequence."""
    solutions: tuple[Solution, ...] = ()
    """Of each solve; none of a cell that solves for nothing."""


@dataclass(frozen=True, kw_only=True)
class CellOptions(abc.ABC):
    """What a recipe writes under `cell`.

    Attributes:
        cell: what `build` calls with the options and its own arguments.
    """

    cell: ClassVar[Callable[..., Cell]]

    @property
    def implicit(self) -> bool:
        """Whether the cell has a `DEQ` layer, which a recipe's solver and adjoint are for."""
        return False

    @property
    def title(self) -> str:
        """What results call the cell, with what tells its variants apart."""
        return type(self).__name__.removesuffix("Options")

    def build(self, width: int, hidden: int, bias: bool = True, **layer: Any) -> Cell:
        """Return a new cell.

        Args:
            width: channels of the input.
            hidden: entries of the state.
            bias: whether it has biases.
            layer: keywords of its `DEQ` layer, such as `solver`; of an explicit cell none.
        """
        return type(self).cell(self, width, hidden, bias, **layer)


class Cell(nn.Module, abc.ABC):
    """h_k = F(h_(k-1), W x_k + b).

    The injection W x_k + b does not depend on the state: it is one matrix product for all steps.
    What a step needs of the weights alone (`weights`) is computed once per sequence.

    Args:
        width: channels of the input.
        hidden: entries of the state.
        gates: injections of one step, each as wide as the state.
        bias: whether the injection has one.
    """

    states: int = 1

    def __init__(self, width: int, hidden: int, *, gates: int = 1, bias: bool = True) -> None:
        super().__init__()
        self.width, self.hidden = width, hidden
        self.injection = nn.Linear(width, gates * hidden, bias=bias)

    def inject(self, x: Tensor) -> Tensor:
        """Return W x + b, (..., gates * hidden), for inputs (..., width)."""
        return self.injection(x)

    def begin(self, batch: int, like: Tensor) -> State:
        """Return the state before the first step: zeros (batch, hidden), of the kind of `like`."""
        return tuple(like.new_zeros(batch, self.hidden) for _ in range(self.states))

    def weights(self) -> tuple[Tensor, ...]:
        """Return what `step` takes that depends on the parameters alone."""
        return ()

    @property
    def factored(self) -> bool:
        """Whether the cell's matrix is a product of small ones, which take less room."""
        return any(getattr(part, "factored", False) for part in self.modules() if part is not self)

    @torch.no_grad()
    def prepare_export(self) -> None:
        """Compute once and for all what steps take that depends on the weights alone."""
        if self.factored:
            return
        held = [each.detach().clone().contiguous() for each in self.weights()]
        names = [f"held_{i}" for i in range(len(held))]
        for name, each in zip(names, held, strict=True):
            self.register_buffer(name, each)
        cell: Any = self
        cell.weights = lambda: tuple(getattr(cell, name) for name in names)

    @abc.abstractmethod
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        """Return the state after one step.

        Args:
            u: injection of the step, (batch, gates * hidden).
            state: before it.
            weights: of `weights`.
            time: number of the step from 0, for what differs from step to step.
        """

    def sweep(self, x: Tensor, state: State, lengths: Tensor | None = None, time: int = 0) -> Sweep:
        """Go through sequences (time, batch, width).

        Args:
            x: the sequences, finite after their ends too.
            state: before their first step.
            lengths: steps of each, (batch,); None if all have all.
            time: number of the first step.
        """
        weights = self.weights()
        path: list[Tensor] = []
        # A state that went on after the end could overflow there, and all gradients would be NaN.
        ends = None if lengths is None else lengths.to(x.device)[:, None]
        # Slices x[k] would each make a gradient as large as x.
        for k, u in enumerate(self.inject(x).unbind(0)):
            after = self.step(u, state, weights, time + k)
            if ends is not None:
                pairs = zip(after, state, strict=True)
                after = tuple(torch.where(k < ends, new, old) for new, old in pairs)
            state = after
            path.append(state[0])
        return Sweep(torch.stack(path), state)


def last(path: Tensor, lengths: Tensor) -> Tensor:
    """Return from a path (time, batch, hidden) what it is after each sequence's last step."""
    return path[lengths.to(path.device) - 1, torch.arange(len(lengths), device=path.device)]


def uniform_(tensors: Sequence[Tensor], hidden: int) -> None:
    """Draw weights from U(-1/sqrt(hidden), 1/sqrt(hidden)), in place, as torch's cells do."""
    for tensor in tensors:
        nn.init.uniform_(tensor, -(hidden**-0.5), hidden**-0.5)
