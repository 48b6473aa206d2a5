"""Layers that are measured untrained, and what a training step of one takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from equilibria.run.memory import peak_bytes
from equilibria.solve import Implicit, Neumann, Picard
from equilibria.zoo.recurrent.model import (
    AntisymmetricRNNOptions,
    CellOptions,
    ERNNOptions,
    FastGRNNOptions,
    FastRNNOptions,
    GRUOptions,
    ImplicitERNNOptions,
    LSTMOptions,
    RNNOptions,
    SpectralRNNOptions,
    UGRNNOptions,
)

SOLVED = {"solver": Picard(rtol=1e-3), "adjoint": Implicit(linear=Neumann(rtol=1e-3))}

LAYERS: dict[str, tuple[CellOptions, dict[str, Any]]] = {
    "ERNN, K = 1": (ERNNOptions(), {}),
    "ERNN, K = 1, rank 16": (ERNNOptions(rank=16), {}),
    "ERNN, K = 3": (ERNNOptions(steps=3), {}),
    "ERNN, K = 5": (ERNNOptions(steps=5), {}),
    "ImplicitERNN": (ImplicitERNNOptions(), SOLVED),
    "RNN": (RNNOptions(), {}),
    "FastRNN": (FastRNNOptions(), {}),
    "FastGRNN-LSQ": (FastGRNNOptions(), {}),
    "AntisymmetricRNN": (AntisymmetricRNNOptions(), {}),
    "SpectralRNN": (SpectralRNNOptions(), {}),
    "UGRNN": (UGRNNOptions(), {}),
    "GRU": (GRUOptions(), {}),
    "LSTM": (LSTMOptions(), {}),
}
"""The cell of each layer, and keywords of its `DEQ` layer."""


def step(layer: nn.Module, x: Tensor) -> None:
    """Take a training step: forward, and backward from the state after the last step."""
    _, state = layer(x)
    h = state[0] if isinstance(state, tuple) else state
    h.square().sum().backward()


def peak(layer: nn.Module, x: Tensor) -> int:
    """Return the bytes that a training step allocates at its peak, less the gradients."""
    step(layer, x)  # gradients exist from here on
    return peak_bytes(lambda: step(layer, x), x.device)
