"""The four architectures around the two cells: at equilibrium, and stacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import DEQ
from equilibria.run.models.base import EquilibriumModel, ExplicitConfig, Prediction, freeze_layer
from equilibria.solve import Solution
from equilibria.zoo.language.model.base import SequenceModel, require_batch
from equilibria.zoo.language.model.cell import CellConfig, InjectedModel, SequenceCell, detach_tree
from equilibria.zoo.language.model.transformer import TransformerConfig
from equilibria.zoo.language.model.trellis import TrellisConfig

# --- equilibrium ----------------------------------------------------------------------------------

# Sequence models at the equilibrium of their cell, solved whole or in subsequences.


class EquilibriumSequence(InjectedModel, EquilibriumModel):
    """z* = f(z*; u, memory) for all times of a segment at once, with u injected from the tokens.

    The softmax reads z*; the memory of the next segment is z* too, without a gradient.

    With subsequences, a segment is solved piece by piece, each with the equilibria of the pieces
    before it in its memory. The cell being causal, the pieces' equilibria are together that of the
    whole; and since gradients flow through the memory from piece to piece, so are the gradients: a
    block-triangular system solved by its blocks, forward and backward, exact in the limit of the
    tolerance. In training each piece has dropout masks of its own.

    Args:
        config: of the cell and the vocabulary.
        subsequence: times that are solved together; None for all of a segment.
        **layer: keywords of the `DEQ` layer.

    Source:
        Bai et al. 2019, sec. 3 and 4; subsequences: appendix E, eq. 22.
    """

    def __init__(self, config: CellConfig, subsequence: int | None = None, **layer: Any) -> None:
        cell = config.cell()
        super().__init__(config, cell.features)
        self.subsequence = subsequence
        self.deq = DEQ(cell, init=cell.start, **layer)

    @property
    @override
    def the_cell(self) -> SequenceCell:
        assert isinstance(self.deq.cell, SequenceCell)
        return self.deq.cell

    @override
    def first_piece(self, x: Tensor) -> Tensor:
        return x if self.subsequence is None else x[:, : self.subsequence]

    @override
    def forward(
        self,
        x: Tensor,
        *,
        carry: Any = None,
        z0: Any = None,
        warm: Solution | None = None,
        states: Sequence[int] = (),
        trace: bool = False,
    ) -> Prediction:
        """Solve for the equilibrium of a segment and return the features read from it.

        Args:
            x: tokens (batch, time).
            carry: of the prediction on the segment before; None at a beginning.
            z0: start of the solve, of all times, or a function of the own start of each piece;
                None for zeros.
            warm: an earlier solution to start from, where the segment is solved in one piece.
            states: evaluations after which an iterate is kept, in the `states` of each solution.
            trace: keep the residual after each evaluation, in the `stats.trace` of each solution.

        Returns:
            The prediction, with one solution for each piece.

        Raises:
            ValueError: the carry is of another batch; there is `warm` and more than one piece.
        """
        u, memory, history = self.inject_tokens(x, carry)
        time = x.shape[1]
        size = self.subsequence or time
        if warm is not None and size < time:
            raise ValueError(
                f"warm is one solution, and {time} times are solved in pieces of {size}: give z0, "
                "the start of all times"
            )
        solutions: list[Solution] = []
        for begin in range(0, time, size):
            times = slice(begin, min(begin + size, time))
            piece = u[:, times]
            start = z0
            if z0 is not None and not callable(z0):
                start = pytree.tree_map(lambda x, at=times: x[:, at], z0)
            solution = self.deq(
                *self.the_cell.inject(piece, memory),
                z0=start,
                warm=warm,
                states=states,
                trace=trace,
            )
            solutions.append(solution)
            memory = self.the_cell.remember(solution.value, piece, memory)
        z = pytree.tree_map(lambda *leaves: torch.cat(leaves, 1), *[s.value for s in solutions])
        return Prediction(self.readout(z), tuple(solutions), self.make_carry(memory, history))


# --- stack ----------------------------------------------------------------------------------------

# Explicit networks of the same cells: one cell applied again and again, or a cell a layer.


class TiedStack(InjectedModel):
    """z_(l+1) = f(z_l; u, memory), z_0 = 0, for a number of layers: an equilibrium cut short.

    It is that many steps of plain iteration of `EquilibriumSequence`: weights, dropout masks and
    memory, the last layer's states, are those of all layers. The keys of its state dict are those
    of the equilibrium model with `cell` in place of `deq.cell`.

    Args:
        config: of the cell and the vocabulary.
        layers: applications of the cell.
        checkpointed: keep the state alone of each layer and evaluate the layer again in backward.

    Source:
        Bai et al. 2019, sec. 3; Chen et al. 2016 (checkpoints).
    """

    def __init__(self, config: CellConfig, layers: int, checkpointed: bool = False) -> None:
        cell = config.cell()
        super().__init__(config, cell.features)
        self.cell: SequenceCell = cell
        self.layers = layers
        self.checkpointed = checkpointed

    @property
    @override
    def the_cell(self) -> SequenceCell:
        return self.cell

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        u, memory, history = self.inject_tokens(x, carry)
        operands = self.cell.inject(u, memory)
        z = self.cell.start(*operands)
        layer = freeze_layer(self.cell, operands, self.checkpointed)
        for _ in range(self.layers):
            z = layer(z)
        memory = self.cell.remember(z, u, memory)
        return Prediction(self.readout(z), (), self.make_carry(memory, history))


class UntiedStack(SequenceModel):
    """z_(l+1) = f_l(z_l; u_l, memory_l): a cell for each layer, with a memory of its own.

    The memory of a layer holds what it was given at the times before. A cell of which the config
    makes no `layer_injection` is given the embeddings as z_0 and nothing else, as in
    Transformer-XL; else z_0 = 0 and each layer injects them, as in a TrellisNet.

    Args:
        config: of the cells and the vocabulary.
        layers: number of cells.
        checkpointed: keep the state alone of each layer and evaluate the layer again in backward.

    Source:
        Dai et al. 2019 (Transformer-XL), sec. 3.2; Bai et al. 2019 (TrellisNet).
    """

    def __init__(self, config: CellConfig, layers: int, checkpointed: bool = False) -> None:
        cells = [config.cell() for _ in range(layers)]
        super().__init__(config, config.width, cells[0].features)
        self.cells = nn.ModuleList(cells)
        injections = [i for _ in cells if (i := config.layer_injection()) is not None]
        self.injections = nn.ModuleList(injections)
        self.checkpointed = checkpointed

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        carry = carry or {}
        require_batch(carry, x)
        embedded = self.embed(x)
        history = None
        injected: list[Tensor | None] = [None] * len(self.cells)
        if self.injections:
            pairs = [inject(embedded, carry.get("history")) for inject in self.injections]
            injected, history = [u for u, _ in pairs], pairs[0][1]
        memories, kept = carry.get("memories", [None] * len(self.cells)), []
        z: Any = embedded
        cells = [cell for cell in self.cells if isinstance(cell, SequenceCell)]
        for i, cell in enumerate(cells):
            u = injected[i]
            operands = cell.inject(u, memories[i], embedded)
            if i == 0 and u is not None:
                z = cell.start(*operands)
            kept.append(cell.keep(cell.remember(z, u, memories[i])))
            z = freeze_layer(cell, operands, self.checkpointed)(z)
        carry = {} if None in kept else {"memories": kept}
        if history is not None and history.shape[1]:
            carry["history"] = history
        return Prediction(self.output_dropout(cells[-1].read(z)), (), detach_tree(carry) or None)


# --- architectures --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EquilibriumConfig(CellConfig):
    """What the configs of equilibrium sequence models add to those of their cells.

    Args:
        subsequence: times that are solved together, one piece of a segment after the other; None
            for a whole segment.
    """

    subsequence: int | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "subsequence")

    @override
    def build(self, **layer: Any) -> EquilibriumSequence:
        return EquilibriumSequence(self, self.subsequence, **layer)


@dataclass(frozen=True, kw_only=True)
class StackConfig(CellConfig, ExplicitConfig):
    """What the configs of explicit networks add to those of their cells.

    Args:
        layers: applications of a cell.
        tied: all layers are one cell, as at equilibrium; else each has weights of its own.
        checkpoint: keep the state alone of each layer and evaluate the layer again in backward.
    """

    layers: int = 12
    tied: bool = True
    checkpoint: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "layers")

    @override
    def network(self) -> SequenceModel:
        kind = TiedStack if self.tied else UntiedStack
        return kind(self, self.layers, self.checkpoint)


@dataclass(frozen=True, kw_only=True)
class DEQTransformerConfig(EquilibriumConfig, TransformerConfig):
    """The architecture of a Transformer at its equilibrium.

    Its fields are those of `TransformerConfig`, and `subsequence`: times that are solved together,
    one piece of a segment after the other; None for a whole segment.
    """


@dataclass(frozen=True, kw_only=True)
class DEQTrellisNetConfig(EquilibriumConfig, TrellisConfig):
    """The architecture of a trellis network at its equilibrium.

    Its fields are those of `TrellisConfig`, and `subsequence`: times that are solved together, one
    piece of a segment after the other; None for a whole segment.
    """


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(StackConfig, TransformerConfig):
    """The architecture of a Transformer of so many layers.

    Its fields are those of `TransformerConfig`, and `layers`, `tied` and `checkpoint`. Tied, it is
    the equilibrium model's cell applied again and again; untied, Transformer-XL.
    """

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        injected = self.direct or self.injection_kernel > 1 or self.injection_scale is not None
        if injected and not self.tied:
            raise ValueError(
                "direct, injection_kernel and injection_scale are of an injection, and untied "
                "layers have none: leave them out, or set tied"
            )


@dataclass(frozen=True, kw_only=True)
class TrellisNetConfig(StackConfig, TrellisConfig):
    """The architecture of a trellis network of so many layers.

    Its fields are those of `TrellisConfig`, and `layers`, `tied` and `checkpoint`. Tied, it is the
    trellis network of the paper; untied, a temporal convolutional network of the same cells, the
    first of which has zeros alone to convolve.
    """
