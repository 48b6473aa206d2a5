"""The Jacobian of f along a solve, for the methods that ask for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from equilibria.solve.derivative import Linearisation
from equilibria.solve.rows import Layout, Rows
from equilibria.solve.solvers.base import Jacobian, Product
from equilibria.solve.tree import Leaves


class GraphKeeper(Jacobian):
    """f on rows, and its Jacobian by products.

    From the first time that a Jacobian is asked for, every evaluation keeps its graph, so that to
    linearise at the newest iterate takes no evaluation of its own. Memory: one evaluation of f.

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
        self.evals = 0
        self._layout = layout
        self._plain = plain
        self._linearise = linearise
        self._keeps = False
        self._at: Rows = []
        self._latest: Linearisation | None = None

    def evaluate(self, z: Rows) -> Rows:
        """f(z)."""
        if not self._keeps:
            return self._plain(z)
        latest = self._linearised(z)
        return self._layout.rows([leaf.detach() for leaf in latest.value])

    def __call__(self, z: Rows) -> Product:
        latest = self._latest
        if latest is None or any(a is not b for a, b in zip(z, self._at, strict=True)):
            latest = self._linearised(z)
            self.evals += 1
        self._keeps = True
        layout = self._layout

        def product(v: Rows) -> Rows:
            return layout.rows(latest.direct(layout.leaves(v)))

        return product

    def _linearised(self, z: Rows) -> Linearisation:
        self._latest = None  # one graph at a time
        with torch.inference_mode(False):
            self._latest = self._linearise(self._layout.leaves(z))
        self._at = z
        return self._latest


class KnownProduct(Jacobian):
    """The Jacobian of an affine map, the same everywhere."""

    def __init__(self, product: Product) -> None:
        self.evals = 0
        self._product = product

    def __call__(self, z: Rows) -> Product:
        return self._product
