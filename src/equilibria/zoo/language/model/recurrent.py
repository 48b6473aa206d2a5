"""Recurrent language models: LSTM and GRU by torch's kernels, and any cell step by step."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import VariationalDropout, weight_dropout
from equilibria.nn.recurrent.cell import CellOptions
from equilibria.nn.recurrent.layer import Recurrent as CellLoop
from equilibria.run.models.base import ExplicitConfig, Prediction
from equilibria.run.registry import find, resolve
from equilibria.zoo.language.model.base import SequenceConfig, SequenceModel, require_batch

DEFAULT_CELL = "ERNN"
"""Name of the cell that a language model has where no other is chosen."""


class CellLayer(nn.Module):
    """A layer of any recurrent cell over a whole segment, step by step; called as `KernelLayer`."""

    def __init__(self, width: int, hidden: int, cell: CellOptions) -> None:
        super().__init__()
        self.recurrent = CellLoop(width, hidden, cell=cell)

    def forward(
        self, x: Tensor, states: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        before = None
        if states is not None:
            stacked = tuple(state.to(x.dtype)[None] for state in states)
            before = stacked[0] if self.recurrent.states == 1 else stacked
        swept = self.recurrent.sweep(x.transpose(0, 1), before)
        return swept.output.transpose(0, 1), tuple(state[0] for state in swept.state)


class KernelLayer(nn.Module):
    """One layer over a whole segment, by torch's own kernel.

    Its two matrices are linear layers of their own, not one `nn.LSTM`, so that the one from state
    to state can have dropout. With s the logistic function:

    - `lstm`: i, f, g, o = W x_t + U h_(t-1) + b; c_t = s(f) c_(t-1) + s(i) tanh(g);
      h_t = s(o) tanh(c_t).
    - `gru`: h_t = (1 - u) n + u h_(t-1), n = tanh(W_n x_t + b + r (U_n h_(t-1) + c)), gates r and
      u.

    Args:
        kernel: "lstm" or "gru", the name of torch's function.
        width: features of the input.
        hidden: features of the state.
        dropped: share of the weights from state to state that is dropped in training.
    """

    def __init__(self, kernel: str, width: int, hidden: int, dropped: float) -> None:
        super().__init__()
        gates, self.states = {"lstm": (4, 2), "gru": (3, 1)}[kernel]
        self.kernel, self.hidden = getattr(torch, kernel), hidden
        self.input_map = nn.Linear(width, gates * hidden)
        self.state_map = nn.Linear(hidden, gates * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
        if dropped:
            weight_dropout(self.state_map, dropped)

    def forward(
        self, x: Tensor, states: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return outputs (batch, time, hidden) and the states (batch, hidden) at the end.

        Args:
            x: (batch, time, width).
            states: at the end of the segment before; None for zeros.
        """
        if states is None:
            states = (x.new_zeros(len(x), self.hidden),) * self.states
        maps = self.input_map, self.state_map
        weights = [m.weight for m in maps] + [m.bias for m in maps]
        before = [state.to(x.dtype)[None] for state in states]
        output, *after = self.kernel(
            *(x, before if self.states > 1 else before[0], weights),
            *(True, 1, 0.0, self.training, False, True),
        )
        return output, tuple(state[0] for state in after)


@dataclass(frozen=True, kw_only=True)
class RecurrentLanguageConfig(SequenceConfig, ExplicitConfig):
    """The architecture of a recurrent language model.

    Args:
        vocabulary: number of tokens; None for that of the data, which the task fills in.
        cutoffs: first token of each cluster of the adaptive embedding and softmax but the first.
        division: by what the embeddings of each cluster are narrower than those of the one before.
        tied_embedding: embedding and softmax share their tables.
        embedding_scale: factor of the embeddings.
        embedding_initial: standard deviation of the embeddings' weights at the start.
        embedding_dropout: share of the vocabulary that is set to zero in a training step.
        input_dropout: share of the embeddings' features that is dropped, at all times alike.
        output_dropout: share of the features before the softmax that is dropped, likewise.
        width: features of the embeddings.
        hidden: features of each layer's state.
        layers: layers on top of one another.
        hidden_dropout: share of the features between two layers that is dropped, likewise.
        weight_dropout: share of the weights from state to state that is dropped, for all samples
            and times of a training step alike.
    """

    kernel: ClassVar[str]

    embedding_scale: float | None = 1.0
    embedding_initial: float = 0.05
    width: int = 256
    hidden: int = 256
    layers: int = 1
    hidden_dropout: float = 0.0
    weight_dropout: float = 0.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "width", "hidden", "layers")
        check_fields(self, "[0, 1)", "hidden_dropout", "weight_dropout")
        if self.hidden_dropout and self.layers == 1:
            raise ValueError(
                f"hidden_dropout={self.hidden_dropout} is for what goes from layer to layer, and "
                "layers is 1: use output_dropout"
            )

    @override
    def network(self) -> "RecurrentLanguageModel":
        return RecurrentLanguageModel(self)

    def layer(self, width: int) -> nn.Module:
        """Return a new layer of inputs of some width."""
        return KernelLayer(self.kernel, width, self.hidden, self.weight_dropout)


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(RecurrentLanguageConfig):
    __doc__ = RecurrentLanguageConfig.__doc__

    kernel = "lstm"


@dataclass(frozen=True, kw_only=True)
class GRUConfig(RecurrentLanguageConfig):
    __doc__ = RecurrentLanguageConfig.__doc__

    kernel = "gru"


def _choose_cell() -> CellOptions:
    """Return the options of an equilibrated cell, as they are by default.

    Raises:
        ValueError: no application has that cell.
    """
    cells = find("classes")
    if DEFAULT_CELL not in cells:
        raise ValueError(
            f"cell is {DEFAULT_CELL} by default, which comes with the application recurrent, and "
            "that is not there: name another cell"
        )
    return resolve(cells[DEFAULT_CELL][1])()


@dataclass(frozen=True, kw_only=True)
class CellLanguageConfig(RecurrentLanguageConfig):
    """The architecture of a recurrent language model of any cell.

    Args:
        vocabulary: number of tokens; None for that of the data, which the task fills in.
        cutoffs: first token of each cluster of the adaptive embedding and softmax but the first.
        division: by what the embeddings of each cluster are narrower than those of the one before.
        tied_embedding: embedding and softmax share their tables.
        embedding_scale: factor of the embeddings.
        embedding_initial: standard deviation of the embeddings' weights at the start.
        embedding_dropout: share of the vocabulary that is set to zero in a training step.
        input_dropout: share of the embeddings' features that is dropped, at all times alike.
        output_dropout: share of the features before the softmax that is dropped, likewise.
        width: features of the embeddings.
        hidden: features of each layer's state.
        layers: layers on top of one another.
        hidden_dropout: share of the features between two layers that is dropped, likewise.
        weight_dropout: 0, for this is of the kernels of `lstm` and `gru`.
        cell: the recurrent cell, one that solves for nothing.
    """

    cell: CellOptions = field(default_factory=_choose_cell)

    @property
    @override
    def title(self) -> str:
        return self.cell.title

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_dropout:
            raise ValueError(
                f"weight_dropout is {self.weight_dropout}, and only the models lstm and gru have "
                "it: set it to 0"
            )
        if self.cell.implicit:
            raise ValueError(
                f"{type(self.cell).__name__} solves for its state, and a language model takes a "
                "cell with a fixed number of steps: ERNN, for example"
            )
        if getattr(self.cell, "times", None) is not None:
            raise ValueError(
                "a language model goes on from segment to segment, and cell.times counts steps "
                "from the beginning of one: set cell.times to null"
            )

    @override
    def layer(self, width: int) -> nn.Module:
        return CellLayer(width, self.hidden, self.cell)


class RecurrentLanguageModel(SequenceModel):
    """Embedding, recurrent layers with variational dropout between them, softmax.

    Tied to embeddings of another width than the state's, the softmax reads the state through one
    matrix more. The carry has for each layer the states (batch, hidden) after the last token.

    papers: Hochreiter and Schmidhuber 1997 (LSTM); Cho et al. 2014 (GRU); Gal and Ghahramani 2016
    (masks that are shared by all times); Merity et al. 2018 (AWD-LSTM: dropout of words and of
    weights).
    """

    def __init__(self, config: RecurrentLanguageConfig) -> None:
        super().__init__(config, config.width, config.hidden)
        widths = (config.width, *[config.hidden] * (config.layers - 1))
        self.layers = nn.ModuleList(config.layer(width) for width in widths)
        self.hidden_dropout = VariationalDropout(config.hidden_dropout, shared=(1,))

    @override
    def forward(
        self, x: Tensor, *, carry: tuple[tuple[Tensor, ...], ...] | None = None
    ) -> Prediction:
        """Return the features from which the softmax predicts the tokens that come next.

        Args:
            x: tokens (batch, time), int64.
            carry: of the prediction on the segment before; None at a beginning.

        Returns:
            The prediction: `output` (batch, time, hidden), no solutions, and the carry.

        Raises:
            ValueError: the tokens are not (batch, time), or the carry is of another batch.
        """
        y = self.embed(x)
        require_batch(carry, x)
        after = []
        for i, layer in enumerate(self.layers):
            y, states = layer(self.hidden_dropout(y) if i else y, carry[i] if carry else None)
            after.append(tuple(state.detach() for state in states))
        return Prediction(self.output_dropout(y), (), tuple(after))
