"""What implicit graph layers share: a graph in, a fixed point on its nodes out."""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_within
from equilibria.nn import DEQ
from equilibria.solve import Anderson, Solution, shared
from equilibria.zoo.graph.model.edges import Edges, Flow, Normalize, read_edges


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without bias; of as many inputs as the first call has, where they are -1."""
    if inputs == -1:
        return nn.LazyLinear(outputs, bias=False)
    return nn.Linear(inputs, outputs, bias=False)


class GraphLayer(nn.Module, abc.ABC):
    """A layer with the interface of PyTorch Geometric's: it needs none of that package.

    Args:
        in_channels: features of a node; -1 for those of the first call.
        out_channels: features that come out.
        flow: whether messages go from edge_index[0] to edge_index[1], or back.
        normalize: "sym", "row" or None, see `Edges.normalize`.
        self_loops: each node sends itself a message of weight 1.
    """

    entry: str
    """The name of the map that features meet first."""

    affine = False
    """Whether a network applies the activation behind the layer."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        flow: Flow = "source_to_target",
        normalize: Normalize | None = "sym",
        self_loops: bool = True,
    ) -> None:
        super().__init__()
        if in_channels != -1 and in_channels < 1:
            raise ValueError(f"in_channels must be positive, or -1 for unknown; got {in_channels}")
        check_within("[1, inf)", out_channels=out_channels)
        if flow not in ("source_to_target", "target_to_source"):
            raise ValueError(f"flow must be 'source_to_target' or 'target_to_source'; got {flow!r}")
        if normalize not in ("sym", "row", None):
            raise ValueError(f"normalize must be 'sym', 'row' or None; got {normalize!r}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.flow: Flow = flow
        self.normalize: Normalize | None = normalize
        self.self_loops = self_loops

    def read(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> tuple[Edges, Tensor | None]:
        """Return the edges as the layer weighs them, and the weights where they have a gradient.

        Raises:
            TypeError, ValueError: as of `read_edges`, or another number of features than
                the layer's.
        """
        edges, tracked = read_edges(x, edge_index, edge_weight, batch, flow=self.flow)
        entry = getattr(self, self.entry)
        # Another map, or a lazy one, takes any width; a LazyLinear becomes a Linear at its first.
        known = isinstance(entry, nn.Linear) and not isinstance(entry, nn.LazyLinear)
        if known and entry.in_features != x.shape[1]:
            raise ValueError(f"x: expected {entry.in_features} features per node, got {x.shape[1]}")
        weight = edges.weight if tracked is None else tracked
        if self.self_loops:
            edges, weight = edges.add_loops(weight)
        weight = edges.normalize(self.normalize, weight)
        edges = replace(edges, weight=weight.detach())
        return edges, None if tracked is None else weight

    @abc.abstractmethod
    def reset_parameters(self) -> None:
        """Draw the weights anew."""

    @override
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        """Return the features `(nodes, out_channels)`.

        Args:
            x: `(nodes, in_channels)`.
            edge_index: `(2, edges)` int64, or a sparse adj_t `(nodes, nodes)`.
            edge_weight: `(edges,)`, >= 0; None for 1.
            batch: `(nodes,)` int64, ascending, the graph of each node; None for a single graph.
        """
        return self.evaluate(x, edge_index, edge_weight, batch)[0]

    @abc.abstractmethod
    def evaluate(self, x: Tensor, *graph: Any) -> tuple[Tensor, tuple[Solution, ...]]:
        """Return what `forward` does, and the solutions of the equations inside.

        Args:
            x: of `forward`.
            graph: edge_index, edge_weight and batch of `forward`.
        """

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


class ImplicitGraphLayer(GraphLayer):
    """A layer whose output solves an equation on the nodes of each graph.

    A sample is a graph: it has a status, a count of evaluations and a residual of its own, and its
    batch mates change nothing. By default the tolerance is one for each of its nodes.

    Args:
        layer: keywords of the `DEQ`: solver, eval_solver, adjoint, throw.
    """

    deq: DEQ

    @staticmethod
    def equilibrium(cell: nn.Module, layer: dict[str, Any]) -> DEQ:
        """Return the layer of a cell, with a solver that looks at each node unless one is given."""
        return DEQ(cell, coupled=True, **{"solver": Anderson(period=3, per_row=True), **layer})

    @abc.abstractmethod
    def inject(self, x: Tensor, edges: Edges, weight: Tensor | None) -> Tensor:
        """Return what the equation is driven by, `(nodes, out_channels)`."""

    def operands(self, x: Tensor, *graph: Any) -> tuple[Any, ...]:
        """Return the operands of the cell, of what `evaluate` takes: injection, edges, weights."""
        edges, weight = self.read(x, *graph)
        return self.inject(x, edges, weight), shared(edges), shared(weight)

    def solve(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        **options: Any,
    ) -> Solution:
        """Solve for the equilibrium of each graph.

        Args:
            x, edge_index, edge_weight, batch: as of `forward`.
            options: of the `DEQ`'s forward: z0, warm, states, trace, throw.

        Returns:
            The `Solution`: value `(nodes, out_channels)`; status, evaluations and residual of each
            graph.
        """
        operands = self.operands(x, edge_index, edge_weight, batch)
        return self.deq(*operands, coupled=True if batch is None else batch, **options)

    @override
    def evaluate(self, x: Tensor, *graph: Any) -> tuple[Tensor, tuple[Solution, ...]]:
        solution = self.solve(x, *graph)
        return solution.value, (solution,)
