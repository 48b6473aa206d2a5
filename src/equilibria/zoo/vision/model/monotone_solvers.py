"""Operator splitting: the methods that are made for monotone equilibrium networks."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import Jacobian, Point, Rows, Solver, Stepper
from equilibria.zoo.vision.model.monotone import MonotoneCell
from equilibria.zoo.vision.model.monotone_map import Resolvent

__all__ = ["ForwardBackward", "PeacemanRachford", "Splitting"]


@dataclass(frozen=True, kw_only=True)
class Splitting(Solver, abc.ABC):
    """A splitting method for z = relu(W z + u), of a monotone model alone.

    One evaluation is one of the cell's f, with one application of W, as for any other solver, and
    the residual that it converges in is that of f too.

    Attributes:
        alpha: step, positive.

    Raises:
        TypeError: the solver is used on another cell, by `fixed_point`, or in backward.
    """

    alpha: float = 1.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float):
            raise TypeError(
                f"{type(self).__name__}(alpha=...): expected a number, got {self.alpha!r}"
            )
        if not 0.0 < self.alpha < float("inf"):
            raise ValueError(
                f"{type(self).__name__}(alpha=...): expected a positive number, got {self.alpha!r}"
            )

    @override
    def bound_to(self, cell: object) -> Solver:
        if not isinstance(cell, MonotoneCell):
            raise self._misplaced(f"the cell {type(cell).__name__}")
        limits = {field.name: getattr(self, field.name) for field in fields(Solver)}
        return _Bound(**limits, splitting=self, cell=cell)

    @override
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        raise self._misplaced("this equation")

    @abc.abstractmethod
    def stepper(self, cell: MonotoneCell) -> Stepper:
        """The method's memory for one solve of this cell, empty."""

    def _misplaced(self, what: str) -> TypeError:
        return TypeError(
            f"{type(self).__name__} splits z = relu(W z + u) of a monotone model, which {what} is "
            "not: take another solver, such as eq.Anderson()"
        )


@dataclass(frozen=True, kw_only=True)
class ForwardBackward(Splitting):
    """z <- relu(z - alpha (z - W z - u)), forward-backward splitting.

    Converges for alpha < 2 m / L^2, L the norm of I - W. With alpha = 1 it is plain iteration.
    History: none.

    Source: Winston and Kolter 2020, sec. 3.3.
    """

    @override
    def stepper(self, cell: MonotoneCell) -> Stepper:
        return _ForwardBackward(cell, self.alpha)


@dataclass(frozen=True, kw_only=True)
class PeacemanRachford(Splitting):
    """u <- R_W(R_relu(u)), z = relu(u): Peaceman-Rachford splitting.

    R_W = 2 (I + alpha (I - W))^-1 (. + alpha b) - I reflects at the linear part, whose inverse is
    computed once per solve, and R_relu = 2 relu - I at the other. Converges for every alpha > 0.
    Written with the evaluation y = W z + b that every step takes anyway,

        u <- u + 2 (I + alpha (I - W))^-1 (z - u + alpha (y - z)).

    Besides its evaluations, a step applies the inverse once. History: u, one vector of the size of
    the state; the inverse, for each frequency of the lowest resolution a square matrix of its
    channels and those that lie above them.

    Source: Winston and Kolter 2020, sec. 3.3.
    """

    @override
    def stepper(self, cell: MonotoneCell) -> Stepper:
        return _PeacemanRachford(cell, self.alpha)


@dataclass(frozen=True, kw_only=True)
class _Bound(Solver):
    """A splitting method with the cell that it splits."""

    splitting: Splitting
    cell: MonotoneCell

    @override
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        with torch.set_grad_enabled(tracked):
            return self.splitting.stepper(self.cell)


class _Splitter(Stepper):
    """z and y as images, and back to the rows of a state.

    Args:
        cell: whose states are contiguous, so that a row lies as its image does.
    """

    def __init__(self, cell: MonotoneCell) -> None:
        self.cell = cell
        self.shapes = cell.linear.shapes

    @override
    def step(self, now: Point) -> Rows:
        y = self._images(now.f)
        return _rows(self.cell.lift(self.next(now, self.cell.activate(self._images(now.z)), y), y))

    @abc.abstractmethod
    def next(self, now: Point, z: list[Tensor], y: list[Tensor]) -> list[Tensor]:
        """The next z, from z and y = W z + u."""

    @override
    def select(self, index: Tensor) -> None:
        pass

    def _images(self, rows: Rows) -> list[Tensor]:
        return [row.reshape(-1, *shape) for row, shape in zip(rows, self.shapes, strict=True)]


class _ForwardBackward(_Splitter):
    def __init__(self, cell: MonotoneCell, alpha: float) -> None:
        super().__init__(cell)
        self.alpha = alpha

    @override
    def next(self, now: Point, z: list[Tensor], y: list[Tensor]) -> list[Tensor]:
        return self.cell.activate([torch.lerp(a, b, self.alpha) for a, b in zip(z, y, strict=True)])


class _PeacemanRachford(_Splitter):
    def __init__(self, cell: MonotoneCell, alpha: float) -> None:
        super().__init__(cell)
        self.alpha = alpha
        self.inverse = Resolvent(cell.linear, alpha)
        self.u: list[Tensor] = []  # relu(u) is z, at the newest evaluation

    @override
    def next(self, now: Point, z: list[Tensor], y: list[Tensor]) -> list[Tensor]:
        u = self.u or self._images(now.z)
        parts = zip(z, y, u, strict=True)
        moved = self.inverse([a - c + self.alpha * (b - a) for a, b, c in parts])
        self.u = [a + 2.0 * b for a, b in zip(u, moved, strict=True)]
        return self.cell.activate(self.u)

    @override
    def select(self, index: Tensor) -> None:
        self.u = [u.index_select(0, index) for u in self.u]


def _rows(images: Sequence[Tensor]) -> Rows:
    return [image.flatten(1) for image in images]
