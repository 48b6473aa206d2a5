"""Networks that answer at every place of an instance: at equilibrium, or of a fixed depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria import draws
from equilibria.checks import check_fields
from equilibria.nn import DEQ
from equilibria.run.models.base import (
    ClassifierConfig,
    EquilibriumModel,
    ExplicitConfig,
    Model,
    Prediction,
)
from equilibria.zoo.reasoning.model.cells import (
    BLOCK,
    AttentionCell,
    CellName,
    ConvolutionalCell,
    LinearRecurrence,
)


@dataclass(frozen=True, kw_only=True)
class PlacesConfig(ClassifierConfig):
    """The architecture of a network that answers at every place, by evaluations of a cell.

    Args:
        shape: channels and size of an instance; null for those of the data. A cell without
            attention takes instances of any size.
        classes: answers at a place; null for those of the data.
        cell: "convolution", for sequences and grids; "attention", for instances of one size;
            "diagonal" or "dense", linear recurrences along a sequence.
        width: features of a place.
        hidden: features inside the cell; null for twice the width.
        heads: of the attention.
    """

    shape: tuple[int, ...] | None = None
    classes: int | None = None
    cell: CellName = "convolution"
    width: int = 32
    hidden: int | None = None
    heads: int = 4

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "width", "hidden", "heads")
        if self.width % self.heads and self.cell == "attention":
            raise ValueError(f"width is {self.width}, which {self.heads} heads do not divide")
        if self.width % BLOCK and self.cell == "dense":
            raise ValueError(
                f"width is {self.width}, and the cell dense has blocks of {BLOCK}: give a multiple"
            )

    def known(self) -> tuple[tuple[int, ...], int]:
        """Return shape and classes.

        Raises:
            ValueError: they are not known.
        """
        if self.shape is None or self.classes is None:
            raise ValueError(
                "shape and classes are not known: the data fill them in, or give both, such as "
                "shape=(1, 16) and classes=2 for parities of 16 bits"
            )
        return self.shape, self.classes

    def make_cell(self) -> nn.Module:
        """Return a new cell, of the operand that `Encoder` makes of an input."""
        (channels, *space), _ = self.known()
        hidden = self.hidden or 2 * self.width
        if self.cell == "convolution":
            return ConvolutionalCell(channels, self.width, hidden, len(space))
        if self.cell == "attention":
            return AttentionCell(self.width, self.heads, hidden)
        if len(space) != 1:
            raise ValueError(f"cell is {self.cell}, a recurrence, and the data are no sequences")
        return LinearRecurrence(self.width, dense=self.cell == "dense")


@dataclass(frozen=True, kw_only=True)
class ReasonerConfig(PlacesConfig):
    """The architecture of an equilibrium network that answers at every place."""

    @override
    def build(self, **layer: Any) -> Reasoner:
        return Reasoner(self, **layer)


class Encoder(nn.Module):
    """What a cell is told at every evaluation: the instance itself, or features of its places."""

    def __init__(self, config: PlacesConfig) -> None:
        super().__init__()
        (channels, *space), _ = config.known()
        self.embed = self.position = None
        if config.cell != "convolution":
            self.embed = nn.Linear(channels, config.width)
        if config.cell == "attention":
            self.position = nn.Parameter(0.5 * torch.randn(config.width, *space))

    def forward(self, x: Tensor) -> Tensor:
        """Return `(batch, features, *space)` of an instance `(batch, channels, *space)`."""
        if self.embed is None:
            return x
        u = self.embed(x.movedim(1, -1)).movedim(-1, 1)
        return u if self.position is None else u + self.position


class Reasoner(EquilibriumModel):
    """z* = cell(z*; encoder(x)), and an answer that is read from each place of z*."""

    def __init__(self, config: ReasonerConfig, **layer: Any) -> None:
        super().__init__()
        _, classes = config.known()
        self.config = config
        self.encoder = Encoder(config)
        self.deq = DEQ(config.make_cell(), init=self._start, returns="last", **layer)
        self.head = nn.Linear(config.width, classes)

    def _start(self, u: Tensor) -> Tensor:
        return u.new_zeros(len(u), self.config.width, *u.shape[2:])

    @override
    def inject(self, x: Tensor) -> tuple[Tensor]:
        return (self.encoder(x),)

    @override
    def readout(self, z: Tensor) -> Tensor:
        """Return logits `(batch, classes, *space)`."""
        return read_places(self.head, z)


def read_places(head: nn.Linear, z: Tensor) -> Tensor:
    """Return what a linear map makes of the features at each place, `(batch, outputs, *space)`."""
    return head(z.movedim(1, -1)).movedim(-1, 1)


# --- fixed depth ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FixedDepthConfig(PlacesConfig, ExplicitConfig):
    """The architecture of a network that applies the cell of a `ReasonerConfig` a number of times.

    Args:
        depth: applications in training.
        test_depth: applications in evaluation; null for `depth`. More than that is what a network
            with one set of weights can be asked for.
        tied: one set of weights for all applications; otherwise one for each.
        progressive: whether training adds a second loss, of the state after k further applications
            that begin at the state after n, which is not differentiated; n + k is at most `depth`,
            and both are random.
        sequential: for the cells "diagonal" and "dense": compute their fixed point by one pass
            through the sequence, a step for each place, as a recurrent network does. `depth` has no
            meaning then.

    papers: Bansal et al. 2022, sec. 3.2 (recall and progressive loss).
    """

    depth: int = 8
    test_depth: int | None = None
    tied: bool = True
    progressive: bool = False
    sequential: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "[1, inf)", "depth", "test_depth")
        if self.sequential and self.cell not in ("diagonal", "dense"):
            raise ValueError(
                f"sequential is true and cell is {self.cell}: choose diagonal or dense, the cells "
                "that have an explicit form"
            )
        if self.sequential and (not self.tied or self.test_depth or self.progressive):
            raise ValueError(
                "sequential is true: one pass through the sequence has no depth: leave out tied, "
                "test_depth and progressive"
            )
        if not self.tied and (self.test_depth or self.progressive):
            raise ValueError(
                "tied is false: a network with weights for each of its applications has no others "
                "to go on with: leave out test_depth and progressive"
            )

    @override
    def network(self) -> FixedDepthReasoner:
        return FixedDepthReasoner(self)


class FixedDepthReasoner(Model):
    """z_(i+1) = cell_i(z_i; encoder(x)), z_0 = 0, and an answer read from the last of them.

    If `sequential`, the answer is read from the fixed point of the one cell instead.
    """

    def __init__(self, config: FixedDepthConfig) -> None:
        super().__init__()
        _, classes = config.known()
        self.config = config
        self.encoder = Encoder(config)
        count = 1 if config.tied else config.depth
        self.cells = nn.ModuleList(config.make_cell() for _ in range(count))
        self.head = nn.Linear(config.width, classes)

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return logits `(batch, classes, *space)` of instances `(batch, channels, *space)`."""
        self.refuse_carry(carry)
        u, config = self.encoder(x), self.config
        if config.sequential:
            cell: Any = self.cells[0]
            z = cell.run(u)
        else:
            depth = config.depth if self.training else config.test_depth or config.depth
            z = self._iterate(u, u.new_zeros(len(u), config.width, *u.shape[2:]), depth)
        auxiliary = ()
        if self.training and config.progressive:
            auxiliary = (read_places(self.head, self._iterate_later(u)),)
        return Prediction(read_places(self.head, z), (), auxiliary=auxiliary)

    def _iterate(self, u: Tensor, z: Tensor, times: int) -> Tensor:
        for number in range(times):
            z = self.cells[number % len(self.cells)](z, u)
        return z

    def _iterate_later(self, u: Tensor) -> Tensor:
        drawn = draws.for_batch(torch.empty(2), Tensor.uniform_).tolist()
        skipped = int(drawn[0] * self.config.depth)
        followed = 1 + int(drawn[1] * (self.config.depth - skipped))
        with torch.no_grad():
            z = self._iterate(u, u.new_zeros(len(u), self.config.width, *u.shape[2:]), skipped)
        return self._iterate(u, z, followed)


@dataclass(frozen=True, kw_only=True)
class SequenceLSTMConfig(ClassifierConfig, ExplicitConfig):
    """The architecture of an LSTM that answers at every place of a sequence.

    Args:
        shape: channels and length of a sequence; null for those of the data.
        classes: answers at a place; null for those of the data.
        width: entries of the state.
        layers: on top of one another.
    """

    shape: tuple[int, ...] | None = None
    classes: int | None = None
    width: int = 32
    layers: int = 1

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "width", "layers")

    @override
    def network(self) -> SequenceLSTM:
        return SequenceLSTM(self)


class SequenceLSTM(Model):
    """An LSTM, and an answer that is read from its state at each place."""

    def __init__(self, config: SequenceLSTMConfig) -> None:
        super().__init__()
        if config.shape is None or config.classes is None or len(config.shape) != 2:
            raise ValueError(f"an LSTM goes through sequences, and the shape is {config.shape}")
        self.lstm = nn.LSTM(config.shape[0], config.width, config.layers, batch_first=True)
        self.head = nn.Linear(config.width, config.classes)

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return logits `(batch, classes, length)` of sequences `(batch, channels, length)`."""
        self.refuse_carry(carry)
        features, _ = self.lstm(x.transpose(1, 2))
        return Prediction(self.head(features).transpose(1, 2), ())
