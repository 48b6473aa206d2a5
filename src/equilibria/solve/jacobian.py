"""The Jacobian of f along a solve, for the methods that ask for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.derivative import Linearisation
from equilibria.solve.rows import Layout, Rows, add_scaled, length, select, subtract
from equilibria.solve.solvers.base import Jacobian, Product
from equilibria.solve.status import warn
from equilibria.solve.tree import Leaves

# What torch says where a backward can't be differentiated again: kernels without a second
# derivative, functions of a user that have none. Any other error is f's own.
_ONCE_ONLY = ("is not implemented", "once_differentiable", "double backward")


class GraphKeeper(Jacobian):
    """f on rows, and its Jacobian by products.

    From the first time that a Jacobian is asked for, every evaluation keeps its graph, so that to
    linearise at the newest iterate takes no evaluation of its own. Memory: one evaluation of f.
    Compiled code can't be differentiated twice: those evaluations run uncompiled.

    Where autograd can't differentiate f twice (fused attention, custom functions) a product is a
    difference of two evaluations, exact to half of the digits.

    Args:
        plain: f, untracked.
        linearise: f at a state, tracked, with its graph.
    """

    def __init__(
        self,
        layout: Layout,
        plain: Callable[[Rows], Rows],
        linearise: Callable[[Leaves], Linearisation],
    ) -> None:
        self.cost = 1
        self._layout = self._layout_of_graph = layout
        self._plain = plain
        self._linearise = linearise
        self._keeps = False
        self._latest: Linearisation | None = None
        self._among: Tensor | None = None  # which of the graph's samples are still in the batch
        self._uncompiled = False  # f is compiled, and is evaluated uncompiled for its graph
        self._differences = False  # f can't be differentiated twice

    def evaluate(self, z: Rows) -> Rows:
        """f(z)."""
        if not self._keeps:
            return self._plain(z)
        latest = self._linearised(z)
        return self._layout.rows([leaf.detach() for leaf in latest.value])

    def select(self, index: Tensor, layout: Layout) -> None:
        """Keeps the samples named by `index`, in rows of this layout; the newest graph still holds
        all."""
        self._among, self._layout = index, layout

    def __call__(self, z: Rows) -> Product:
        self._keeps = True
        if self._latest is None:
            self._linearised(z)
        latest, among = self._latest, self._among
        assert latest is not None
        layout = self._layout_of_graph

        def by_graph(v: Rows) -> Rows:
            if among is None:
                return layout.rows(latest.direct(layout.leaves(v)))
            samples = latest.value[0].shape[0]
            v = [row.new_zeros(samples, row.shape[1]).index_copy_(0, among, row) for row in v]
            return select(layout.rows(latest.direct(layout.leaves(v))), among)

        def by_difference(v: Rows) -> Rows:
            image = layout.rows([leaf.detach() for leaf in latest.value])
            if among is not None:
                image = select(image, among)
            size = length(v)
            step = math.sqrt(torch.finfo(size.dtype).eps) * (length(z) + length(image)) / size
            step = torch.where(torch.isfinite(step) & (step > 0), step, 1.0)
            change = subtract(self._plain(add_scaled(z, step, v)), image)
            return [row / step.unsqueeze(1) for row in change]

        def product(v: Rows) -> Rows:
            if not self._differences:
                try:
                    found = by_graph(v)
                    self._uncompiled |= latest.uncompiled
                    return found
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:
                    if not any(words in str(error) for words in _ONCE_ONLY):
                        raise
                    self._differences = True
                    warn(
                        "f can't be differentiated twice "
                        f"({type(error).__name__}: {str(error).splitlines()[0]}): Newton's "
                        "products with its Jacobian are finite differences, to half the digits"
                    )
            return by_difference(v)

        return product

    def _linearised(self, z: Rows) -> Linearisation:
        self._latest = self._among = None  # one graph at a time
        with (
            torch.inference_mode(False),
            private.run_eagerly() if self._uncompiled else nullcontext(),
        ):
            self._latest = self._linearise(self._layout.leaves(z))
            self._layout_of_graph = self._layout
        return self._latest


class KnownProduct(Jacobian):
    """The Jacobian of an affine map, the same everywhere."""

    def __init__(self, product: Product) -> None:
        self.cost = 0
        self._product = product

    def __call__(self, z: Rows) -> Product:
        return self._product
