"""Sequence models around one cell: the injection, the memory and the carry between segments."""

import abc
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.zoo.language.model.base import SequenceModel, require_batch
from equilibria.zoo.language.model.cell import CellConfig, SequenceCell

__all__ = ["InjectedModel", "detached"]


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
        u, memory, _ = self.injected(x, carry)
        return self.the_cell.inject(u, memory)

    def readout(self, z: Any) -> Tensor:
        """Return the features (batch, time, features) at a state, with dropout."""
        return self.output_dropout(self.the_cell.read(z))

    def injected(self, tokens: Tensor, carry: Any) -> tuple[Tensor, Any, Tensor]:
        """Return the injection (batch, time, units), the memory and the injection's history."""
        carry = carry or {}
        require_batch(carry, tokens)
        u, history = self.injection(self.embed(tokens), carry.get("history"))
        return u, carry.get("memory"), history

    def carried(self, memory: Any, history: Tensor) -> dict[str, Any] | None:
        """Return what the next segment needs, detached; None where it needs nothing."""
        carry = {"memory": self.the_cell.keep(memory)} if memory is not None else {}
        if carry.get("memory") is None:
            carry = {}
        if history.shape[1]:
            carry["history"] = history
        return detached(carry) or None


def detached(tree: Any) -> Any:
    """A tree of tensors cut off the graph, each in a storage of its own size."""
    return pytree.tree_map(lambda x: x.detach().clone(), tree)
