"""Recurrent networks: equilibrated ones, and those they are measured against."""

from equilibria.models.recurrent.cell import Cell, CellOptions, Sweep
from equilibria.models.recurrent.classifier import RecurrentConfig, SequenceClassifier
from equilibria.models.recurrent.ernn import ERNNOptions
from equilibria.models.recurrent.gated import (
    FastGRNNOptions,
    GRUOptions,
    LSTMOptions,
    UGRNNOptions,
)
from equilibria.models.recurrent.implicit import ImplicitERNNOptions, ImplicitEulerOptions
from equilibria.models.recurrent.layer import Recurrent
from equilibria.models.recurrent.named import (
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
from equilibria.models.recurrent.plain import AntisymmetricRNNOptions, FastRNNOptions, RNNOptions
from equilibria.models.recurrent.spectral import SpectralRNNOptions

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
