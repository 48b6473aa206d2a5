"""Recurrent networks: equilibrated ones, and those they are measured against."""

from equilibria.nn.recurrent.cell import Cell, CellOptions, Sweep
from equilibria.nn.recurrent.layer import Recurrent
from equilibria.zoo.recurrent.model.classifier import RecurrentConfig, SequenceClassifier
from equilibria.zoo.recurrent.model.ernn import ERNNOptions
from equilibria.zoo.recurrent.model.gated import (
    FastGRNNOptions,
    GRUOptions,
    LSTMOptions,
    UGRNNOptions,
)
from equilibria.zoo.recurrent.model.implicit import ImplicitERNNOptions, ImplicitEulerOptions
from equilibria.zoo.recurrent.model.named import (
    CELLS,
    ERNN,
    GRU,
    LSTM,
    RNN,
    UGRNN,
    AntisymmetricRNN,
    FastGRNN,
    FastRNN,
    ImplicitERNN,
    ImplicitEulerRNN,
    SpectralRNN,
)
from equilibria.zoo.recurrent.model.plain import (
    AntisymmetricRNNOptions,
    FastRNNOptions,
    RNNOptions,
    SpectralRNNOptions,
)

__all__ = [
    "CELLS",
    "ERNN",
    "GRU",
    "LSTM",
    "RNN",
    "UGRNN",
    "AntisymmetricRNN",
    "AntisymmetricRNNOptions",
    "Cell",
    "CellOptions",
    "ERNNOptions",
    "FastGRNN",
    "FastGRNNOptions",
    "FastRNN",
    "FastRNNOptions",
    "GRUOptions",
    "ImplicitERNN",
    "ImplicitERNNOptions",
    "ImplicitEulerOptions",
    "ImplicitEulerRNN",
    "LSTMOptions",
    "RNNOptions",
    "Recurrent",
    "RecurrentConfig",
    "SequenceClassifier",
    "SpectralRNN",
    "SpectralRNNOptions",
    "Sweep",
    "UGRNNOptions",
]
