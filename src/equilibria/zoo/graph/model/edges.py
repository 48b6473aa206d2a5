"""Edges as PyTorch Geometric writes them, checked, and the product with their matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.zoo.graph.checks import check_graph

Flow = Literal["source_to_target", "target_to_source"]
Normalize = Literal["sym", "row"]


@dataclass(frozen=True, eq=False)
class Edges:
    """The matrix A^T that carries messages: (A^T z)_i is the sum of w_k z_j over edges k, j -> i.

    It is no tensor and has no gradient; the weights have one where they are given to the product.

    Attributes:
        sender: `(edges,)` int64, j of each edge.
        receiver: `(edges,)` int64, i of each edge.
        weight: `(edges,)`, detached.
        nodes: how many there are.
    """

    sender: Tensor
    receiver: Tensor
    weight: Tensor
    nodes: int

    def __call__(self, z: Tensor, weight: Tensor | None = None) -> Tensor:
        """A^T z, `(nodes, width)`.

        Args:
            z: `(nodes, width)`.
            weight: the weights, connected to autograd; None for those known, without a gradient.
        """
        return _multiply(z, weight, self, False)

    def multiply(self, z: Tensor, transposed: bool, weight: Tensor | None = None) -> Tensor:
        """A^T z, or A z; untracked."""
        into, out = self._terms[transposed]
        in_order = self._weights[transposed] if weight is None else weight[self._orders[transposed]]
        # The fastest kernel by far: a row is summed where it is made. z is narrower under autocast.
        return torch.embedding_bag(
            z.contiguous(), into, out, False, 0, False, in_order.to(z.dtype), True
        )[0]

    @cached_property
    def _terms(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """For either product: the node that each term takes, and where the terms of each begin."""
        return tuple(
            (taken[order], _begins(summed, self.nodes))
            for (taken, summed), order in zip(self.pairs, self._orders, strict=True)
        )  # pyright: ignore[reportReturnType]

    @cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        first, second = (self.weight[order] for order in self._orders)
        return first, second

    @cached_property
    def _orders(self) -> tuple[Tensor, Tensor]:
        """For either product: its edges, those that add to the same node side by side."""
        return self.receiver.argsort(stable=True), self.sender.argsort(stable=True)

    @property
    def pairs(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """For either product: the node that each edge takes, and the one that it adds to."""
        return (self.sender, self.receiver), (self.receiver, self.sender)

    def add_loops(self, weight: Tensor) -> tuple[Edges, Tensor]:
        """Return edges and weights with an edge of weight 1 from each node to itself, in place of
        those that there are; the weights are connected to those given."""
        kept = self.sender != self.receiver
        own = torch.arange(self.nodes, device=self.sender.device)
        sender, receiver = (torch.cat([end[kept], own]) for end in (self.sender, self.receiver))
        weight = torch.cat([weight[kept], weight.new_ones(self.nodes)])
        return Edges(sender, receiver, weight.detach(), self.nodes), weight

    def normalize(self, how: Normalize | None, weight: Tensor) -> Tensor:
        """`(edges,)` the weights divided by what their nodes send and receive; 0 / 0 is 0.

        "sym" is D_in^-1/2 A^T D_out^-1/2, for undirected graphs that of Kipf and Welling 2017, and
        "row" D_in^-1 A^T. The largest singular value of the one and row sum of the other is 1 at
        most, and so is the spectral radius of both.
        """
        if how is None:
            return weight
        received = _sums(weight, self.receiver, self.nodes)[self.receiver]
        if how == "row":
            return weight / torch.where(received > 0, received, 1.0)
        sent = _sums(weight, self.sender, self.nodes)[self.sender]
        both = received * sent
        return weight * torch.where(both > 0, both, 1.0).rsqrt()


def _multiply(z: Tensor, weight: Tensor | None, edges: Edges, transposed: bool) -> Tensor:
    product: Any = _Product
    return product.apply(z, weight, edges, transposed)


class _Product(torch.autograd.Function):
    """A^T z, or A z: linear in z and in the weights, so right to any order."""

    @staticmethod
    def forward(z: Tensor, weight: Tensor | None, edges: Edges, transposed: bool) -> Tensor:
        return edges.multiply(z, transposed, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, weight, ctx.edges, ctx.transposed = inputs
        ctx.weighted = weight is not None
        if ctx.weighted:  # otherwise z need not be kept
            ctx.save_for_backward(z, weight)
            ctx.save_for_forward(z, weight)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (grad,) = grads
        saved: tuple[Any, Any] = ctx.saved_tensors if ctx.weighted else (None, None)
        z, weight = saved
        of_z = of_weight = None
        if ctx.needs_input_grad[0]:
            of_z = _multiply(grad, weight, ctx.edges, not ctx.transposed)
        if ctx.needs_input_grad[1]:
            taken, summed = ctx.edges.pairs[ctx.transposed]
            both = z.index_select(0, taken) * grad.index_select(0, summed).to(weight.dtype)
            of_weight = both.sum(1)
        return of_z, of_weight, None, None

    @staticmethod
    @override
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        of_z, of_weight = tangents[:2]
        saved: tuple[Any, Any] = ctx.saved_tensors if ctx.weighted else (None, None)
        z, weight = saved
        parts: list[Tensor] = []
        if of_z is not None:
            parts.append(_multiply(of_z, weight, ctx.edges, ctx.transposed))
        if of_weight is not None:
            parts.append(_multiply(z, of_weight, ctx.edges, ctx.transposed))
        return sum(parts[1:], start=parts[0])

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[Any, ...],
        z: Tensor,
        weight: Tensor | None,
        edges: Edges,
        transposed: bool,
    ) -> tuple[Tensor, int]:
        of_z, of_weight = in_dims[:2]
        if weight is not None and of_weight is not None:
            weights = weight.unbind(of_weight)
            rows = [z] * len(weights) if of_z is None else z.unbind(of_z)
            each = zip(rows, weights, strict=True)
            return torch.stack([_multiply(*pair, edges, transposed) for pair in each]), 0
        wide = z.movedim(of_z, 1)  # (nodes, size, width): all elements side by side
        return _multiply(wide.flatten(1), weight, edges, transposed).reshape(wide.shape), 1


def read_edges(
    x: Tensor,
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    batch: Tensor | None = None,
    *,
    flow: Flow = "source_to_target",
) -> tuple[Edges, Tensor | None]:
    """Reads a graph as PyTorch Geometric's layers take one, after checking it.

    Args:
        x: `(nodes, features)`.
        edge_index: `(2, edges)` int64, or the transposed adjacency matrix `(nodes, nodes)` as a
            sparse tensor of torch or torch_sparse, whose values are the weights.
        edge_weight: `(edges,)`, >= 0; None for 1.
        batch: `(nodes,)` int64, ascending, the graph of each node; None for a single graph.
        flow: whether messages go from edge_index[0] to edge_index[1], or back.

    Returns:
        The edges, and the weights where they have a gradient.

    Raises:
        TypeError: something is no tensor.
        TypeError, ValueError: as of `check_graph`.
    """
    for name, value in (("x", x), ("edge_weight", edge_weight), ("batch", batch)):
        if not isinstance(value, Tensor) and (name == "x" or value is not None):
            raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    edge_index = as_tensor(edge_index)
    if edge_index.layout is not torch.strided:
        if edge_weight is not None:
            raise ValueError("edge_weight: a sparse adj_t holds the weights itself; leave it out")
        edge_index, edge_weight = _entries(edge_index, len(x))
    check_graph(x, edge_index, edge_weight, batch)
    sender, receiver = edge_index if flow == "source_to_target" else edge_index.flip(0)
    # Degrees of hundreds are rounded in less than single precision, which x has under autocast.
    wide = torch.promote_types(x.dtype, torch.float32)
    if edge_weight is None:
        weight = x.new_ones(edge_index.shape[1], dtype=wide)
    else:
        weight = edge_weight.to(wide)
    tracked = weight if weight.requires_grad else None
    return Edges(sender, receiver, weight.detach(), len(x)), tracked


def as_tensor(edge_index: Any) -> Tensor:
    """A tensor as it is; torch_sparse's SparseTensor, known by its method, as one of torch."""
    if isinstance(edge_index, Tensor):
        return edge_index
    if callable(convert := getattr(edge_index, "to_torch_sparse_coo_tensor", None)):
        return cast(Tensor, convert())
    raise TypeError(
        "edge_index: expected an int64 tensor (2, edges) or a sparse adj_t, got "
        f"{type(edge_index).__name__}"
    )


def _entries(adj_t: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Edges and weights of a transposed adjacency matrix: row i has what node i receives."""
    if tuple(adj_t.shape) != (nodes, nodes):
        raise ValueError(
            f"adj_t: expected ({nodes}, {nodes}) for {nodes} nodes, got {tuple(adj_t.shape)}"
        )
    found = (adj_t if adj_t.layout is torch.sparse_coo else adj_t.to_sparse_coo()).coalesce()
    return found.indices().flip(0), found.values()


def _begins(index: Tensor, count: int) -> Tensor:
    """`(count + 1,)` where the entries of each begin, were the index sorted."""
    sizes = index.bincount(minlength=count)
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def _sums(values: Tensor, index: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).index_add(0, index, values)
