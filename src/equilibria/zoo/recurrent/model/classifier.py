"""A recurrent network that answers once per sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn.recurrent.cell import CellOptions, State
from equilibria.nn.recurrent.layer import Recurrent
from equilibria.run.models.base import ClassifierConfig, Model, Prediction
from equilibria.zoo.recurrent.model.ernn import ERNNOptions


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ClassifierConfig):
    """Recurrent layers and a linear readout.

    Args:
        shape: channels of a step, (channels,), or empty for tokens; null for that of the data.
        classes: number of outputs; null for that of the data.
        vocabulary: number of tokens, which have an embedding; null for signals, or for that of
            the data.
        embedding: features of the embedding of tokens.
        cell: the recurrent cell.
        hidden: entries of a layer's state.
        layers: layers on top of one another.
        bidirectional: a second cell of each layer goes through the sequence backwards.
        dropout: share of the outputs of each layer but the last that is dropped in training.
        readout: what the answer is read from: the state after the "last" step, or the "mean" of
            the states after all steps.
    """

    shape: tuple[int, ...] | None = None
    classes: int | None = None
    vocabulary: int | None = None
    embedding: int = 128
    cell: CellOptions = field(default_factory=ERNNOptions)
    hidden: int = 64
    layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    readout: Literal["last", "mean"] = "last"

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "hidden", "layers", "embedding")
        check_fields(self, "[0, 1)", "dropout")
        if self.dropout and self.layers == 1:
            raise ValueError(
                f"dropout is {self.dropout}, for what goes from layer to layer, and layers is 1: "
                "set it to 0"
            )

    @property
    @override
    def implicit(self) -> bool:
        return self.cell.implicit

    @property
    @override
    def title(self) -> str:
        return self.cell.title

    @override
    def build(self, **layer: Any) -> SequenceClassifier:
        if layer and not self.implicit:
            raise TypeError(
                f"{type(self.cell).__name__} solves for nothing and takes no {', '.join(layer)}"
            )
        return SequenceClassifier(self, **layer)


class SequenceClassifier(Model):
    """logits = V h + c, h the state after the last step of a sequence, or the mean of all.

    papers: Kag et al. 2019, sec. 2, eq. 7.
    """

    def __init__(self, config: RecurrentConfig, **layer: Any) -> None:
        super().__init__()
        if config.shape is None or config.classes is None:
            raise ValueError(
                "shape and classes are not known: the data fill them in, or give both, such as "
                "shape=(9,) for 9 channels and classes=2"
            )
        self.config = config
        self.embed = None
        if config.vocabulary is not None:
            self.embed = nn.Embedding(config.vocabulary, config.embedding)
        self.recurrent = Recurrent(
            config.embedding if self.embed is not None else config.shape[0],
            config.hidden,
            config.layers,
            dropout=config.dropout,
            bidirectional=config.bidirectional,
            cell=config.cell,
            layer=layer,
        )
        self.head = nn.Linear(config.hidden * self.recurrent.directions, config.classes)

    @override
    def forward(self, x: Any, *, carry: Any = None) -> Prediction:
        """Return the answer for each sequence.

        Args:
            x: signals (batch, time, channels) or tokens (batch, time), int64; or a tuple of these
                and the steps of each sequence, (batch,).
            carry: None: each sequence begins anew.

        Returns:
            The prediction: `output` (batch, classes), and the solutions of implicit cells.

        Raises:
            ValueError: a shape or a length does not fit, or there is a carry.
        """
        self.refuse_carry(carry)
        x, lengths = x if isinstance(x, tuple | list) else (x, None)
        embedded = x if self.embed is None else self.embed(x)
        lengths = None if lengths is None else torch.as_tensor(lengths)
        if embedded.dim() != 3:
            raise ValueError(
                f"expected sequences (batch, time, {self.recurrent.input_size}); got "
                f"{tuple(x.shape)}"
            )
        swept = self.recurrent.sweep(embedded.transpose(0, 1), None, lengths)
        if self.config.readout == "mean":
            count = len(swept.output) if lengths is None else lengths.to(x.device)[:, None]
            h = swept.output.sum(0) / count
        else:
            h = torch.cat(swept.state[0][-self.recurrent.directions :].unbind(), -1)
        return Prediction(self.head(h), swept.solutions)

    def begin(self, batch: int = 1) -> State:
        """Return the state before the first step of a stream, for `step`."""
        like = self.head.weight
        shape = (len(self.recurrent.cells), batch, self.config.hidden)
        state = tuple(like.new_zeros(shape) for _ in range(self.recurrent.states))
        if self.config.readout == "mean":
            state += (like.new_zeros(batch, self.config.hidden), like.new_zeros(batch, 1))
        return state

    def step(self, x: Tensor, state: State, *, time: int | None = None) -> tuple[Tensor, State]:
        """Take one step of a stream.

        Args:
            x: signals of the step, (batch, channels), or tokens (batch,).
            state: of `begin`, or of the step before.
            time: number of the step from 0, which a cell needs whose steps differ in time.

        Returns:
            The answer as of this step, (batch, classes), and the state. After the last step of a
            sequence the answer is that of `forward`.

        Raises:
            ValueError: as of `Recurrent.step`.
        """
        count = self.recurrent.states
        hx = state[:count] if count > 1 else state[0]
        output, after = self.recurrent.step(
            x if self.embed is None else self.embed(x), hx, time=time
        )
        after = after if isinstance(after, tuple) else (after,)
        if self.config.readout == "last":
            return self.head(output), after
        total, steps = state[count] + output, state[count + 1] + 1
        return self.head(total / steps), (*after, total, steps)
