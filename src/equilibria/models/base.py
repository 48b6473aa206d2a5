"""What every equilibrium model is: an injection, one layer solved to its fixed point, a readout."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from equilibria.nn import DEQ
from equilibria.solve import Solution


class Prediction(NamedTuple):
    """A model's answer and the solution that it was read from."""

    output: Tensor
    """(batch, ...), for a classifier the logits (batch, classes)."""
    solution: Solution


@dataclass(frozen=True, kw_only=True)
class ModelConfig(abc.ABC):
    """The architecture of a model: what a recipe writes under `model`."""

    @abc.abstractmethod
    def build(self, **layer: Any) -> "EquilibriumModel":
        """Return a new model; `layer` holds keywords of its `DEQ` layer, such as `solver`."""


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(ModelConfig):
    """The architecture of a model that tells classes apart.

    Args:
        shape: shape of one input, without the batch.
        classes: number of outputs.
    """

    shape: tuple[int, ...]
    classes: int


class EquilibriumModel(nn.Module, abc.ABC):
    """A network with one implicit layer: z* = f(z*; inject(x)), output = readout(z*).

    papers: Bai et al. 2019, sec. 3.
    """

    deq: DEQ

    @abc.abstractmethod
    def inject(self, x: Any) -> tuple[Any, ...]:
        """Return the operands of the cell: what the fixed point depends on, computed once.

        Args:
            x: the model's input, first axis the batch.
        """

    @abc.abstractmethod
    def readout(self, z: Any) -> Tensor:
        """Return the prediction at the state `z`, z* or an iterate on the way to it."""

    def forward(
        self,
        x: Any,
        *,
        z0: Any = None,
        warm: Solution | None = None,
        states: Sequence[int] = (),
        trace: bool = False,
    ) -> Prediction:
        """Solve for the equilibrium of `x` and read the output from it.

        Args:
            x: the model's input, first axis the batch.
            z0: start of the solve; None for the layer's own.
            warm: an earlier solution to start from.
            states: evaluations after which an iterate is kept in `solution.states`.
            trace: keep the residual after each evaluation in `solution.stats.trace`.
        """
        solution = self.deq(*self.inject(x), z0=z0, warm=warm, states=states, trace=trace)
        return Prediction(self.readout(solution.value), solution)
