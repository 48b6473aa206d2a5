"""Explicit networks of the same cells: one cell applied again and again, or a cell a layer."""

from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from equilibria.run.models.base import Prediction
from equilibria.run.models.unrolled import frozen_layer
from equilibria.zoo.language.model.base import SequenceModel, require_batch
from equilibria.zoo.language.model.cell import CellConfig, SequenceCell
from equilibria.zoo.language.model.injected import InjectedModel, detached

__all__ = ["TiedStack", "UntiedStack"]


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
        u, memory, history = self.injected(x, carry)
        operands = self.cell.inject(u, memory)
        z = self.cell.start(*operands)
        layer = frozen_layer(self.cell, operands, self.checkpointed)
        for _ in range(self.layers):
            z = layer(z)
        memory = self.cell.remember(z, u, memory)
        return Prediction(self.readout(z), (), self.carried(memory, history))


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
            z = frozen_layer(cell, operands, self.checkpointed)(z)
        carry = {} if None in kept else {"memories": kept}
        if history is not None and history.shape[1]:
            carry["history"] = history
        return Prediction(self.output_dropout(cells[-1].read(z)), (), detached(carry) or None)
