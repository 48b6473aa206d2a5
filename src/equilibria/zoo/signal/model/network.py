"""Networks of coordinates: one whose layer is iterated to equilibrium, and that layer at zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.nn import DEQ
from equilibria.run.models.base import EquilibriumModel, Model, Prediction
from equilibria.solve import private

if TYPE_CHECKING:
    from equilibria.zoo.signal.model.configs import (
        ExplicitRepresentationConfig,
        ImplicitRepresentationConfig,
        RepresentationConfig,
    )

__all__ = ["ExplicitRepresentation", "Representation", "check_coordinates"]


class Representation(EquilibriumModel):
    """Phi(x) = W' z* + b', z* = f(z*; x): a signal as a function of its coordinates.

    Every coordinate is a sample of the batch, with a solve of its own: (batch, inputs) in [-1, 1]
    -> (batch, outputs). What f takes of the coordinates is computed once a solve.

    papers: Bai 2022 (thesis), eq. 8.7.

    Example:
        >>> model = eq.models.create("imfn", width=128, scale=64)
        >>> grey = model(coordinates).output
    """

    def __init__(self, config: ImplicitRepresentationConfig, **layer: Any) -> None:
        super().__init__()
        self.config = config
        self.injection = config.injection()
        self.deq = DEQ(config.cell(), **layer)
        self.head = nn.Linear(config.width, config.values)

    @override
    def inject(self, x: Any) -> tuple[Tensor, ...]:
        """Return the operands of the cell at coordinates (batch, inputs).

        Raises:
            TypeError, ValueError: they are no coordinates; see `check_coordinates`.
        """
        return self.injection(check_coordinates(self.config, x, self.head.weight))

    @override
    def readout(self, z: Tensor) -> Tensor:
        """Return the signal (batch, outputs) at states (batch, width)."""
        return self.head(z)


class ExplicitRepresentation(Model):
    """Phi(x) = W' f(0; x) + b': the layers of a `Representation`, evaluated once.

    With filters it is a multiplicative filter network of `layers` + 1 filters (eq. 8.3), with sines
    the SIREN with input injection.

    papers: Bai 2022 (thesis), eq. 8.3 and Fig. 8.2.
    """

    def __init__(self, config: ExplicitRepresentationConfig) -> None:
        super().__init__()
        self.config = config
        self.injection = config.injection()
        self.cell = config.cell()
        self.head = nn.Linear(config.width, config.values)

    @override
    def forward(self, x: Any, *, carry: Any = None) -> Prediction:
        """Return the signal (batch, outputs) at coordinates (batch, inputs).

        Raises:
            TypeError, ValueError: they are no coordinates; see `check_coordinates`.
        """
        self.refuse_carry(carry)
        operands = self.injection(check_coordinates(self.config, x, self.head.weight))
        return Prediction(self.head(self.cell(torch.zeros_like(operands[0]), *operands)), ())


def check_coordinates(config: RepresentationConfig, x: Any, weight: Tensor) -> Tensor:
    """Return coordinates, or refuse what is none.

    Args:
        config: of the network.
        x: (batch, inputs), of the weights' dtype.
        weight: one of the network's.

    Raises:
        TypeError: no tensor, or one of another dtype.
        ValueError: another shape, no coordinate, or one that is not finite.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"expected coordinates as a tensor, got {type(x).__name__}")
    if x.dtype != weight.dtype:
        raise TypeError(
            f"the coordinates are {x.dtype} and the network's weights {weight.dtype}: convert one, "
            "for example x.to(torch.float32) or model.double()"
        )
    inputs = config.points
    if x.ndim != 2 or x.shape[1] != inputs:
        raise ValueError(
            f"expected coordinates (batch, {inputs}), got the shape {tuple(x.shape)}: each row is "
            f"a point with {inputs} {'number' if inputs == 1 else 'numbers'}; flatten a grid, "
            f"x.reshape(-1, {inputs})"
        )
    if not x.shape[0]:
        raise ValueError("the batch is empty: there is no coordinate")
    if not finite(x):
        row = int((~torch.isfinite(x)).any(1).nonzero()[0])
        raise ValueError(f"coordinate {row} of the batch is not finite: {x[row].tolist()}")
    return x


def finite(x: Tensor) -> bool:
    """Is all finite? Taken for true where numbers cannot be read: in a transform of torch.func,
    and while a program is compiled or exported."""
    if torch.compiler.is_compiling() or private.transform_active():
        return True
    return bool(torch.isfinite(x).all())
