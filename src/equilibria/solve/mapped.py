"""An equation under torch.vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.derivative import GraphKeeper
from equilibria.solve.equation import Axes, StateEquation, fold, fold_all
from equilibria.solve.grouping import Groups
from equilibria.solve.loop import Run
from equilibria.solve.rows import Layout, Rows
from equilibria.solve.solvers import Jacobian
from equilibria.solve.tree import Leaves


@dataclass
class Mapped(StateEquation):
    """All elements of a mapped axis at once: the axis joins the batch.

    The solver sees one larger batch of plain tensors; f is evaluated under torch.vmap, which alone
    knows what f does with operands and closed-over tensors that are mapped.

    Attributes:
        inner: the equation of one element.
        size: length of the mapped axis.
        shapes: of the state's leaves, for one element.
        axes: where the mapped axis is in the parameters.
    """

    inner: StateEquation
    size: int
    shapes: list[tuple[int, ...]]
    axes: Sequence[int | None]

    def __post_init__(self) -> None:
        self.throw = self.inner.throw
        self.derivative = self.inner.derivative
        groups = self.inner.coupled
        self.coupled = groups.repeated(self.size) if isinstance(groups, Groups) else False
        self.record = None

    @classmethod
    def of(
        cls, inner: StateEquation, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Mapped, Leaves, Leaves, Leaves]:
        """See `Equation.batched`."""
        shapes = [
            tuple((x if axis is None else x.select(axis, 0)).shape)
            for x, axis in zip(z, axes.z, strict=True)
        ]
        return (
            cls(inner, size, shapes, axes.p),
            fold_all(z, axes.z, size, inner.coupled),
            fold_all(first, axes.first, size, inner.coupled),
            p,
        )

    @override
    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        mapped = torch.vmap(self.inner.evaluate, in_dims=([0] * len(z), list(self.axes)))
        elements = [x.reshape(self.size, *shape) for x, shape in zip(z, self.shapes, strict=True)]
        return [fold(x, 0, self.size, self.inner.coupled) for x in mapped(elements, p)]

    @override
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        first = first or [x.detach() for x in self.evaluate(z, p)]
        layout = Layout.of(first, self.coupled).in_units_of(z, first)

        def rows_of_f(rows: Rows) -> Rows:
            return layout.rows([x.detach() for x in self.evaluate(layout.leaves(rows), p)])

        jacobian = GraphKeeper(layout, rows_of_f, lambda at: self.linearise_state(at, p))
        start = layout.rows(z), layout.rows(first)
        return layout, self.search(jacobian.evaluate, *start, jacobian=jacobian, layout=layout)

    @override
    def search(
        self,
        evaluate: Callable[[Rows], Rows],
        z: Rows,
        first: Rows | None,
        *,
        jacobian: Jacobian | None = None,
        layout: Layout | None = None,
    ) -> Run:
        return self.inner.search(evaluate, z, first, jacobian=jacobian, layout=layout)

    @property
    @override
    def floor(self) -> float:
        return self.inner.floor

    @property
    @override
    def recorded(self) -> tuple[int, ...]:
        return self.inner.recorded

    @override
    def batched(
        self, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Mapped, Leaves, Leaves, Leaves]:
        return Mapped.of(self, size, z, first, p, axes)

    @override
    def require_same(self, z: Leaves, value: Leaves, residual: Tensor | None = None) -> None:
        """Nothing to say: first-order backward solves are not made for a mapped equation."""

    @override
    def require_substitutable(self) -> None:
        self.inner.require_substitutable()
