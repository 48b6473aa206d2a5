"""The methods of a layer, its own or those that are in use for a while, and learned weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import nn

from equilibria.solve import Adjoint, Solver


@runtime_checkable
class Weights(Protocol):
    """The weights that a layer holds for a learned solver: one that has `with_weights`."""

    def start(self, inputs: tuple[Any, ...], own: Any) -> Any:
        """Return the initial guess of a solve, given the layer's inputs and own initial state."""
        ...

    def bind(self, solver: Any, *, started: bool) -> Solver:
        """Return the solver with these weights, for a solve that begins at `start` or not."""
        ...


class Methods(NamedTuple):
    """What `using` puts in place of a layer's own methods; None for the layer's own."""

    solver: Solver | None = None
    eval_solver: Solver | None = None
    adjoint: Adjoint | None = None
    neural: Weights | None = None
    returns: str | None = None


chosen: ContextVar[Mapping[nn.Module, Methods]] = ContextVar(
    "equilibria_methods", default=MappingProxyType({})
)
"""The methods in use by `using`, of each layer that has such."""


def check_methods(cell: Callable[..., Any], given: Methods) -> None:
    """Raise TypeError if one of them is no solver or adjoint, or is made for other cells."""
    unlike = isinstance(given.neural, type) or not isinstance(given.neural, Weights)
    if given.neural is not None and unlike:
        raise TypeError(
            "neural: expected the weights of a learned solver, such as `layer.neural` after "
            f"eq.distill, got {type(given.neural).__name__}"
        )
    for name in ("solver", "eval_solver", "adjoint"):
        method: object = getattr(given, name)
        kind = Adjoint if name == "adjoint" else Solver
        if method is not None and not isinstance(method, kind):
            example = "eq.Implicit()" if kind is Adjoint else "eq.Anderson()"
            raise TypeError(f"{name}: expected one such as {example}, got {method!r}")
        if isinstance(method, Solver):
            method.bound_to(cell)


def find_weights(solver: Solver, neural: Weights | None) -> Weights | None:
    """The weights that a learned solver is to be bound to; None for any other solver."""
    if not hasattr(solver, "with_weights"):
        return None
    if neural is None:
        raise ValueError(
            "a learned solver takes its weights from its layer, and this layer has none: train "
            "them with eq.distill(layer, batches), or `equilibria distill RUN`"
        )
    return neural
