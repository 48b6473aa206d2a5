"""Sparse fixed-point correction: a loss on a few states along the solver's path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equilibria.checks import check_fields

__all__ = ["FixedPointCorrection"]


@dataclass(frozen=True, kw_only=True)
class FixedPointCorrection:
    """A loss on `count` states of the solver's path, so that the path heads for the answer early.

        L = loss(z*) + sum_i gamma^(r + 1 - i) loss(z_i),    i = 1 ... r,

    with r = `count` states that cut the path into r + 1 equal parts, the later the heavier. Each
    state has the gradient of one step of f at it, and none through how the solver reached it: that
    is what `Solution.states` carry. Under `Phantom` it is the iterate after its steps from there,
    which suits unstable cells better: a loss of z_i itself says nothing of a step that overshoots.

    The cost is one more evaluation of f, with its graph, and one readout for each state; under
    `Phantom`, as many evaluations as it makes steps.

    Args:
        count: states on the path, r; in practice one is enough.
        gamma: weight of the state nearest to the solution, between 0 and 1.
        evals: evaluations of the path that the states are spread over; None for what solves
            take (`depths` is told), so that states do not fall behind the end of most solves.

    Raises:
        ValueError: `count` or `evals` below 1, `gamma` outside (0, 1].

    Example:
        >>> correction = FixedPointCorrection(count=2, gamma=0.8)
        >>> sol = layer(x, states=correction.depths(12))
        >>> total = loss(head(sol.value)) + correction(lambda z: loss(head(z)), sol.states)

    papers: Bai 2022 (thesis), eq. 7.8, 7.9 and Alg. 4, which asks for random states and takes
    uniformly spaced ones; the powers of gamma for several are those of RAFT's sequence loss.
    """

    count: int = 1
    gamma: float = 0.8
    evals: int | None = None

    def __post_init__(self) -> None:
        for name in ("count", "evals"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise ValueError(f"{name} must be at least 1, a whole number; got {value}")
        check_fields(self, "(0, 1]", "gamma")

    def depths(self, evals: float) -> tuple[int, ...]:
        """Return after how many evaluations the states are taken: pass it on as `states`.

        Args:
            evals: evaluations that a solve takes, where the class has no `evals` of its own.
        """
        length = evals if self.evals is None else self.evals
        parts = self.count + 1
        return tuple(max(1, round(length * i / parts)) for i in range(1, parts))

    def __call__(self, loss: Callable[[Any], Tensor], states: Sequence[Any]) -> Tensor:
        """Return the correction, to be added to the loss.

        Args:
            loss: state -> scalar, the loss of what is read from it.
            states: `Solution.states` of a solve that was given `depths`, found with gradients
                enabled.

        Raises:
            ValueError: another number of states than `count`.
        """
        if len(states) != self.count:
            raise ValueError(
                f"expected {self.count} states, got {len(states)}: solve with "
                "states=correction.depths(...)"
            )
        terms = [self.gamma ** (self.count - i) * loss(z) for i, z in enumerate(states)]
        return sum(terms[1:], terms[0])
