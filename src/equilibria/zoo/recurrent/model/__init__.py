"""Recurrent networks by name: equilibrated ones, and those they are measured against."""

from equilibria.nn.recurrent.layer import Recurrent
from equilibria.zoo.recurrent.model.ernn import ERNNOptions
from equilibria.zoo.recurrent.model.gated import (
    FastGRNNOptions,
    GRUOptions,
    LSTMOptions,
    UGRNNOptions,
)
from equilibria.zoo.recurrent.model.implicit import ImplicitERNNOptions, ImplicitEulerOptions
from equilibria.zoo.recurrent.model.plain import (
    AntisymmetricRNNOptions,
    FastRNNOptions,
    RNNOptions,
    SpectralRNNOptions,
)


class ERNN(Recurrent):
    """An equilibrated recurrent network, in place of `nn.LSTM`: see `ERNNCell`, `ERNNOptions`."""

    options = ERNNOptions


class ImplicitERNN(Recurrent):
    """An equilibrated network whose steps are solved: see `ImplicitERNNCell`."""

    options = ImplicitERNNOptions


class ImplicitEulerRNN(Recurrent):
    """The implicit Euler method of an RNN's ODE: see `ImplicitEulerCell`."""

    options = ImplicitEulerOptions


class RNN(Recurrent):
    """A plain recurrent network: see `RNNCell`."""

    options = RNNOptions


class LSTM(Recurrent):
    """Long short-term memory: see `LSTMCell`."""

    options = LSTMOptions


class GRU(Recurrent):
    """The gated recurrent unit: see `GRUCell`."""

    options = GRUOptions


class UGRNN(Recurrent):
    """The update-gate network: see `UGRNNCell`."""

    options = UGRNNOptions


class FastRNN(Recurrent):
    """An RNN with a weighted residual connection: see `FastRNNCell`."""

    options = FastRNNOptions


class FastGRNN(Recurrent):
    """An RNN with one gate that shares its matrices: see `FastGRNNCell`."""

    options = FastGRNNOptions


class AntisymmetricRNN(Recurrent):
    """Forward Euler of an ODE with an antisymmetric matrix: see `AntisymmetricRNNCell`."""

    options = AntisymmetricRNNOptions


class SpectralRNN(Recurrent):
    """An RNN whose matrix has singular values near 1: see `SpectralRNNCell`."""

    options = SpectralRNNOptions
