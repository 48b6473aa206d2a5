"""What every model is; and what an equilibrium model is: injection, fixed point, readout."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from equilibria.nn import DEQ
from equilibria.nn.frozen import Frozen
from equilibria.solve import Shared, Solution


class ModelError(RuntimeError):
    """A model can no longer be evaluated, for what its weights have become: the end of a training,
    as a loss that is not finite is."""


class Prediction(NamedTuple):
    """A model's answer, the solutions that it was read from, and what the next segment needs."""

    output: Tensor
    """(batch, ...): logits (batch, classes) of a classifier, features (batch, time, width) of a
    sequence model."""
    solutions: tuple[Solution, ...]
    """One for each solve, in order: none of an explicit network, several where a sequence was
    solved piece by piece."""
    carry: Any = None
    """What the forward on the segment that follows is to be given, detached; None of a model
    without memory."""
    auxiliary: tuple[Tensor, ...] = ()
    """In training, answers of the same shape that are read from parts of the state, where the model
    has heads for such: each is to have a loss of its own."""

    @property
    def solution(self) -> Solution:
        """The solution, of a model that solves once.

        Raises:
            ValueError: there is none, or more than one.
        """
        if (solves := len(self.solutions)) == 0:
            raise ValueError("this network solves for nothing, and its answer has no solution")
        if solves > 1:
            raise ValueError(f"the model made {solves} solves: see `solutions`")
        return self.solutions[0]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(abc.ABC):
    """The architecture of a model: what a recipe writes under `model`."""

    @abc.abstractmethod
    def build(self, **layer: Any) -> Model:
        """Return a new model.

        Args:
            layer: keywords of its `DEQ` layer, such as `solver`; of an explicit network none.
        """

    @property
    def implicit(self) -> bool:
        """Whether the model has a `DEQ` layer, which a recipe's solver and adjoint are for."""
        return True

    @property
    def title(self) -> str:
        """What the model is called where its training is announced."""
        return type(self).__name__.removesuffix("Config")


@dataclass(frozen=True, kw_only=True)
class ExplicitConfig(ModelConfig):
    """The architecture of a network that solves for nothing."""

    @property
    @override
    def implicit(self) -> bool:
        return False

    @override
    def build(self, **layer: Any) -> Model:
        """Return a new network.

        Raises:
            TypeError: there is a keyword of a `DEQ` layer, which it has not.
        """
        if layer:
            raise TypeError(
                f"an explicit network has no equilibrium layer to take {', '.join(layer)}: leave "
                "solver and adjoint out, or take the equilibrium model of the same cell"
            )
        return self.network()

    @abc.abstractmethod
    def network(self) -> Model:
        """Return a new network."""


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(ModelConfig):
    """The architecture of a model that tells classes apart.

    Args:
        shape: shape of one input, without the batch; None, where a model allows that, for that of
            the data.
        classes: number of outputs; None likewise.
    """

    shape: tuple[int, ...] | None
    classes: int | None


class Model(nn.Module, abc.ABC):
    """A network that can be trained: an equilibrium network or an explicit one beside it.

    Attributes:
        reads_segments: whether a sample is a segment of a sequence, whose state has entries for
            each time: measurements are then made on fewer of them.
    """

    reads_segments: bool = False

    @property
    def solves_once(self) -> bool:
        """Whether a forward pass solves for one equilibrium, at once or piece by piece, so that it
        can be examined."""
        return False

    @abc.abstractmethod
    def forward(self, x: Any, *, carry: Any = None) -> Prediction:
        """Return the model's answer for `x`.

        Args:
            x: the model's input, first axis the batch.
            carry: of the prediction on the segment before; None at a beginning, and always of a
                model without memory.
        """

    def constrain(self) -> None:
        """Restore in place the bounds that the weights are to keep; called after each step."""

    def count_parameters(self) -> dict[str, int]:
        """Return the number of parameters, as "parameters", and those of parts that papers leave
        out or count apart."""
        return {"parameters": sum(p.numel() for p in self.parameters())}

    def refuse_carry(self, carry: Any) -> None:
        """Refuse what a model without memory cannot use.

        Raises:
            ValueError: there is a carry.
        """
        if carry is not None:
            raise ValueError(f"{type(self).__name__} has no memory and takes no carry")

    def refuses_export(self) -> str:
        """Return why the model cannot be exported to a file, in a sentence; empty where it can."""
        return ""

    def first_piece(self, x: Any) -> Any:
        """Return the part of the input `x` that is solved for first.

        It is all of `x`, unless the model goes through it piece by piece: then a tensor of the
        first times along the second axis, which is that of the targets too.
        """
        return x

    def strip_to_body(self, x: Any) -> Model:
        """Return what the memory of a step is measured of: the model itself, or a copy without what
        is large whatever the depth.

        Args:
            x: the model's input. A copy may keep what it makes of it, and answer for that alone.
        """
        return self


class EquilibriumModel(Model):
    """A network with one implicit layer: z* = f(z*; inject(x)), output = readout(z*).

    papers: Bai et al. 2019, sec. 3.
    """

    deq: DEQ

    @property
    @override
    def solves_once(self) -> bool:
        return True

    @abc.abstractmethod
    def inject(self, x: Any) -> tuple[Any, ...]:
        """Return the operands of the cell: what the fixed point depends on, computed once.

        Args:
            x: the model's input, first axis the batch.
        """

    @abc.abstractmethod
    def readout(self, z: Any) -> Tensor:
        """Return the prediction at the state `z`, z* or an iterate on the way to it."""

    def answer(self, z: Any, x: Any) -> Tensor:
        """Return the prediction for the input `x` at the state `z`: `readout`'s, where the state
        is all that it depends on."""
        return self.readout(z)

    def read_parts(self, z: Any) -> tuple[Tensor, ...]:
        """Return the predictions from parts of the state `z`, for losses of their own in training;
        none of a model without heads for such."""
        return ()

    def forward(
        self,
        x: Any,
        *,
        carry: Any = None,
        z0: Any = None,
        warm: Solution | None = None,
        states: Sequence[int] = (),
        trace: bool = False,
    ) -> Prediction:
        """Solve for the equilibrium of `x` and read the output from it.

        Args:
            x: the model's input, first axis the batch.
            carry: None, since the model has no memory.
            z0: start of the solve, as of `DEQ`'s forward; None for the layer's own.
            warm: an earlier solution to start from.
            states: evaluations after which an iterate is kept in `solution.states`.
            trace: keep the residual after each evaluation in `solution.stats.trace`.

        Raises:
            ValueError: there is a carry.
        """
        self.refuse_carry(carry)
        operands = self.inject(x)
        solution = self.deq(*operands, z0=z0, warm=warm, states=states, trace=trace)
        parts = self.read_parts(solution.value) if self.training else ()
        return Prediction(self.answer(solution.value, x), (solution,), auxiliary=parts)

    def advance(self, x: Any, z: Any) -> Prediction:
        """Evaluate the cell once at the state `z` and read the output from what it returns.

        For training from the state of the step before, see `DEQ.advance`. The prediction's solution
        holds the next state, `solution.value.detach()`, and residual and status of `z`.

        Args:
            x: the model's input, first axis the batch.
            z: a state near the equilibrium of `x`.
        """
        solution = self.deq.advance(z, *self.inject(x))
        parts = self.read_parts(solution.value) if self.training else ()
        return Prediction(self.answer(solution.value, x), (solution,), auxiliary=parts)


# --- unrolled -------------------------------------------------------------------------------------

# One cell applied again and again, as an ordinary network does it.


def freeze_layer(
    cell: nn.Module, operands: tuple[Any, ...], checkpointed: bool
) -> Callable[[Any], Any]:
    """Return z -> f(z) with one set of weights and dropout masks, in backward too.

    Args:
        cell: cell(z, *operands) -> z.
        operands: what does not change from one application to the next.
        checkpointed: keep the state alone and evaluate the cell again in backward.
    """
    plain = [x.value if isinstance(x, Shared) else x for x in operands]
    frozen = Frozen(cell)

    def layer(z: Any) -> Any:
        return frozen.run(None, z, *plain)

    if not checkpointed:
        return layer
    # No random number is drawn again: the masks are those that `frozen` holds.
    return lambda z: checkpoint(layer, z, use_reentrant=False, preserve_rng_state=False)
