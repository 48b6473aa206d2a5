"""Recurrent layers with the interface of `torch.nn.LSTM`, for any cell."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from equilibria.checks import check_within
from equilibria.nn.dropout import dropout as dropped
from equilibria.nn.recurrent.cell import Cell, CellOptions, State, Sweep
from equilibria.solve import Solution


class Recurrent(nn.Module):
    """Layers of one kind of cell, called like `torch.nn.LSTM`.

    Args:
        input_size: channels of the input.
        hidden_size: entries of a layer's state.
        num_layers: layers on top of one another.
        bias: whether cells have biases.
        batch_first: inputs and outputs are (batch, time, channels), not (time, batch, channels).
        dropout: share of the outputs of each layer but the last that is dropped in training.
        bidirectional: a second cell of each layer goes through the sequence backwards; outputs
            are those of both side by side.
        cell: options of the cell, for `Recurrent` itself.
        layer: keywords of the `DEQ` layer of a cell that has one, such as `solver`.
        device: of the parameters.
        dtype: of the parameters.
        options: fields of the cell's options, for a named layer such as `ERNN`.

    Raises:
        ValueError: a size is not positive, or dropout is not in [0, 1).
        TypeError: the cell has no such option, or no `DEQ` layer that `layer` is for.

    Example:
        >>> layer = ERNN(9, 64, steps=3, batch_first=True)
        >>> output, state = layer(torch.randn(8, 128, 9))
    """

    options: ClassVar[type[CellOptions] | None] = None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        cell: CellOptions | None = None,
        layer: dict[str, Any] | None = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        check_within("[0, 1)", dropout=dropout)
        if dropout and num_layers == 1:  # as torch's layers do
            warnings.warn(
                f"dropout={dropout} is for what goes from layer to layer, and num_layers is 1: "
                "nothing is dropped",
                stacklevel=2,
            )
        self.cell_options = self._choose_cell(cell, options)
        if layer and not self.cell_options.implicit:
            raise TypeError(
                f"{self.cell_options.title} solves for nothing and takes no {', '.join(layer)}"
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.bidirectional = batch_first, bidirectional
        self.directions = 2 if bidirectional else 1
        self.dropout = dropout
        widths = (input_size, *[hidden_size * self.directions] * (num_layers - 1))
        self.cells = nn.ModuleList(
            self.cell_options.build(width, hidden_size, bias, **(layer or {}))
            for width in widths
            for _ in range(self.directions)
        )
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    @classmethod
    def _choose_cell(cls, cell: CellOptions | None, options: dict[str, Any]) -> CellOptions:
        if cls.options is None:
            if cell is None:
                raise TypeError("Recurrent needs a cell: cell=ERNNOptions(steps=3), for example")
            if options:
                raise TypeError(f"Recurrent has no option {', '.join(map(repr, options))}")
            return cell
        if cell is not None:
            raise TypeError(f"{cls.__name__} has its own cell, and takes the cell's options")
        known = [field.name for field in dataclasses.fields(cls.options)]
        for name in options:
            if name not in known:
                raise TypeError(
                    f"{cls.__name__} has no option '{name}'; its cell's are: "
                    f"{', '.join(known) or 'none'}"
                )
        return cls.options(**options)

    @property
    def states(self) -> int:
        """Tensors of the state: 2 of an LSTM, 1 of the others."""
        return self._cell(0).states

    def _cell(self, index: int) -> Cell:
        cell = self.cells[index]
        assert isinstance(cell, Cell)
        return cell

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | State | None = None,
        *,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor | State]:
        """Go through sequences.

        Args:
            input: (time, batch, channels); (batch, time, channels) with `batch_first`; (time,
                channels) without a batch; or packed.
            hx: state to begin with, (layers * directions, batch, hidden); None for zeros. The
                tuple (h, c) of an LSTM.
            lengths: steps of each sequence, (batch,); what follows is padding, which may hold
                anything, and outputs there are 0. None if all have all steps.

        Returns:
            The output of the last layer, (time, batch, directions * hidden) or as the input is,
            and the state after the last step of each sequence, as `hx`.

        Raises:
            ValueError: a shape does not fit, or a length is not between 1 and the number of steps.
        """
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError("a packed sequence has its own lengths: leave `lengths` out")
            x, lengths = pad_packed_sequence(input)
            swept = self.sweep(x, hx, lengths)
            order = input.sorted_indices
            output = swept.output if order is None else swept.output.index_select(1, order)
            sorted_lengths = lengths if order is None else lengths[order.cpu()]
            data, sizes, _, _ = pack_padded_sequence(output, sorted_lengths)
            packed = PackedSequence(data, sizes, order, input.unsorted_indices)
            return packed, self._outward(swept.state)
        if single := input.dim() == 2:
            if lengths is not None:
                raise ValueError("one sequence without a batch has no `lengths`: cut it instead")
            input = input.unsqueeze(0 if self.batch_first else 1)
            hx = _add_batch(hx)
        x = input.transpose(0, 1) if self.batch_first and input.dim() == 3 else input
        swept = self.sweep(x, hx, lengths)
        output = swept.output.transpose(0, 1) if self.batch_first else swept.output
        state = swept.state
        if single:
            output, state = output.squeeze(0 if self.batch_first else 1), _first(state)
        return output, self._outward(state)

    def step(self, x: Tensor, hx: Tensor | State | None = None, *, time: int | None = None) -> Any:
        """Take one step of a stream.

        Args:
            x: inputs of this step, (batch, channels).
            hx: state that the step before returned; None at the beginning.
            time: number of the step from 0, which a cell needs whose steps differ in time.

        Returns:
            Outputs (batch, hidden) and the state. One step after the other gives what `forward`
            gives of the whole sequence; under `torch.no_grad()`, in memory that does not grow.

        Raises:
            ValueError: a shape does not fit, the cell's steps differ in time and none is given, or
                the layer is bidirectional, which needs the end of the sequence at its beginning.
        """
        if self.bidirectional:
            raise ValueError("a bidirectional layer cannot be streamed: it begins at the end")
        if x.dim() != 2:
            raise ValueError(f"expected one step (batch, {self.input_size}); got {tuple(x.shape)}")
        if time is None and getattr(self.cell_options, "times", None) is not None:
            raise ValueError(
                "this cell's steps differ in time: give the number of this one, time=0"
            )
        swept = self.sweep(x.unsqueeze(0), hx, time=time or 0)
        return swept.output[0], self._outward(swept.state)

    def sweep(
        self,
        x: Tensor,
        hx: Tensor | State | None = None,
        lengths: Tensor | None = None,
        time: int = 0,
    ) -> Sweep:
        """Go through sequences (time, batch, channels), and keep the solutions of implicit cells.

        Args:
            x: the sequences.
            hx: as in `forward`.
            lengths: as in `forward`.
            time: number of the first step.

        Returns:
            Outputs, the state (layers * directions, batch, hidden), and all solutions.

        Raises:
            ValueError: as in `forward`.
        """
        _check_input(x, self.input_size, self.batch_first)
        there = None
        if lengths is not None:
            lengths = _check_lengths(lengths, x)
            steps = torch.arange(len(x), device=x.device)[:, None]
            there = (steps < lengths.to(x.device)).unsqueeze(-1)
            x = x.masked_fill(~there, 0.0)
        states = self._inward(hx, x)
        after: list[State] = []
        solutions: list[Solution] = []
        for place in range(self.num_layers):
            sides: list[Tensor] = []
            x = dropped(x, self.dropout, self.training, axis=1) if place else x
            for side in range(self.directions):
                index = place * self.directions + side
                entered = _reverse(x, lengths) if side else x
                swept = self._cell(index).sweep(entered, states[index], lengths, time)
                sides.append(_reverse(swept.output, lengths) if side else swept.output)
                after.append(swept.state)
                solutions += swept.solutions
            x = torch.cat(sides, -1) if self.bidirectional else sides[0]
            x = x if there is None else x.masked_fill(~there, 0.0)
        state = tuple(torch.stack(each) for each in zip(*after, strict=True))
        return Sweep(x, state, tuple(solutions))

    def _inward(self, hx: Tensor | State | None, x: Tensor) -> list[State]:
        """The state of each cell."""
        batch, count = x.shape[1], len(self.cells)
        if hx is None:
            like = x if x.is_floating_point() else self._cell(0).injection.weight
            return [self._cell(index).begin(batch, like) for index in range(count)]
        given = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        expected = (count, batch, self.hidden_size)
        if len(given) != self.states or any(each.shape != expected for each in given):
            got = ", ".join(str(tuple(each.shape)) for each in given)
            many = "a tensor" if self.states == 1 else f"a tuple of {self.states} tensors"
            raise ValueError(
                f"expected as state {many} of shape {expected}; got {got or 'nothing'}"
            )
        return [tuple(each[index] for each in given) for index in range(count)]

    def _outward(self, state: State) -> Tensor | State:
        return state[0] if self.states == 1 else state

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, {self.cell_options}"


def _check_input(x: Tensor, width: int, batch_first: bool) -> None:
    if x.dim() != 3 or x.shape[-1] != width:
        order = "batch, time" if batch_first else "time, batch"
        shape = tuple(x.transpose(0, 1).shape if x.dim() == 3 and batch_first else x.shape)
        raise ValueError(f"expected input ({order}, {width}); got {shape}")
    if len(x) == 0:
        raise ValueError("expected sequences of at least one step; got none")


def _check_lengths(lengths: Tensor, x: Tensor) -> Tensor:
    lengths = torch.as_tensor(lengths)
    counted = not lengths.is_floating_point() and lengths.dtype != torch.bool
    if lengths.shape != x.shape[1:2] or not counted:
        raise ValueError(
            f"expected a whole number of steps for each of {x.shape[1]} sequences; got lengths "
            f"{tuple(lengths.shape)} of {lengths.dtype}"
        )
    wrong = (lengths < 1) | (lengths > len(x))
    # What is traced has no values to look at.
    if not torch.compiler.is_compiling() and bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"lengths must lie between 1 and {len(x)}, the steps of the input; sequence {row} "
            f"has {int(lengths[row])}"
        )
    return lengths.long()  # indexing takes uint8 for a mask


def _add_batch(hx: Tensor | State | None) -> Tensor | State | None:
    if hx is None:
        return None
    return hx.unsqueeze(1) if isinstance(hx, Tensor) else tuple(h.unsqueeze(1) for h in hx)


def _first(state: State) -> State:
    return tuple(each.squeeze(1) for each in state)


def _reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Sequences (time, batch, ...) from their ends to their beginnings; padding stays behind."""
    if lengths is None:
        return x.flip(0)
    steps = torch.arange(len(x), device=x.device)[:, None]
    back = lengths.to(x.device) - 1 - steps
    places = torch.where(back >= 0, back, steps)
    return x.gather(0, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
