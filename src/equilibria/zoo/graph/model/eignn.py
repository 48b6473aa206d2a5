"""Efficient infinite-depth graph networks: a linear equilibrium, iterated or in closed form."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_within
from equilibria.solve import Solution, shared
from equilibria.zoo.graph.model.edges import Edges
from equilibria.zoo.graph.model.implicit import GraphLayer, ImplicitGraphLayer, linear

LARGEST = 5_000
"""Nodes whose matrix is still diagonalised: 200 MB in float64, and minutes on a core."""


class EIGNNCell(nn.Module):
    """f(Z) = gamma S^p Z g(F) + U, nodes as rows; g(F) = F^T F / (||F^T F||_F + 1e-12).

    g(F) is symmetric and its largest singular value below 1, so f contracts by gamma at least where
    S has no singular value above 1, or as its powers do where its spectral radius is 1.

    Args:
        width: of the state.
        gamma: in (0, 1).
        power: p, hops a step.
    """

    def __init__(self, width: int, gamma: float, power: int = 1) -> None:
        super().__init__()
        check_within("(0, 1)", gamma=gamma)
        self.gamma, self.power = gamma, power
        self.factor = nn.Parameter(torch.empty(width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.factor)

    @property
    def mixer(self) -> Tensor:
        """g(F), `(width, width)`."""
        square = self.factor.T @ self.factor
        return square / (square.norm() + 1e-12)

    @override
    def forward(self, z: Tensor, u: Tensor, edges: Edges, weight: Tensor | None = None) -> Tensor:
        """Evaluate f once; `u` is the injection, `(nodes, width)`."""
        z = z @ self.mixer
        for _ in range(self.power):
            z = edges(z, weight)
        return self.gamma * z + u


class EIGNN(ImplicitGraphLayer):
    """Z = gamma S Z g(F) + X, solved on the nodes of each graph; X = x B where widths differ.

    papers: Liu et al. 2021, eq. 2 and 6 (columns there, rows here).

    Args:
        in_channels: features of a node; -1 for those of the first call.
        out_channels: features of the state.
        gamma: in (0, 1): how much of a signal is passed on.
        form: "iterated", or "closed": by the eigenvectors of S and g(F), exact, for a single
            undirected graph of at most 5,000 nodes.
        power: hops a step.
        flow, normalize, self_loops: as of `GraphLayer`; the closed form asks for "sym". With None
            S is the weights as given, and a spectral radius above 1 / gamma may have no solution.
        layer: keywords of the `DEQ`, for the iterated form.
    """

    entry = "encode"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        gamma: float = 0.8,
        power: int = 1,
        form: Literal["iterated", "closed"] = "iterated",
        layer: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        if form not in ("iterated", "closed"):
            raise ValueError(f"form must be 'iterated' or 'closed'; got {form!r}")
        if form == "closed" and layer:
            raise ValueError(
                f"form='closed' needs no solver or adjoint: leave out {', '.join(layer)}"
            )
        check_within("[1, inf)", power=power)
        self.form = form
        self.encode = linear(in_channels, out_channels)
        self.deq = self.equilibrium(EIGNNCell(out_channels, gamma, power), layer or {})

    @property
    def cell(self) -> EIGNNCell:
        """S is no part of it: an operand."""
        cell = self.deq.cell
        assert isinstance(cell, EIGNNCell)
        return cell

    @override
    def reset_parameters(self) -> None:
        self.encode.reset_parameters()
        self.cell.reset_parameters()

    @override
    def inject(self, x: Tensor, edges: Edges, weight: Tensor | None) -> Tensor:
        return self.encode(x)

    @override
    def solve(self, *graph: Any, **options: Any) -> Solution:
        if self.form == "closed":
            raise ValueError(
                "form='closed' runs no solver and has no Solution: call the layer itself"
            )
        return super().solve(*graph, **options)

    @override
    def evaluate(self, x: Tensor, *graph: Any) -> tuple[Tensor, tuple[Solution, ...]]:
        """Return what `forward` does, and the solution of the iterated form.

        Raises:
            ValueError: also where there is no closed form: S not symmetric, or too many nodes.
        """
        if self.form == "iterated":
            return super().evaluate(x, *graph)
        edges, weight = self.read(x, *graph)
        if weight is not None:
            raise ValueError(
                "the closed form has no gradient with respect to edge_weight: take "
                "form='iterated', or detach it"
            )
        u, cell = self.inject(x, edges, weight), self.cell
        return solve_closed(u, cell.mixer, edges, cell.gamma, cell.power), ()


def solve_closed(u: Tensor, mixer: Tensor, edges: Edges, gamma: float, power: int = 1) -> Tensor:
    """Z = gamma S^p Z g + U by the eigenvectors of S and g, both symmetric; to any order.

    Args:
        u: U, `(nodes, width)`.
        mixer: g, `(width, width)`.
        edges: S.
        gamma, power: as of `EIGNNCell`.

    Raises:
        ValueError: S is not symmetric, or has more than 5,000 nodes.
    """
    if edges.nodes > LARGEST:
        raise ValueError(
            f"the closed form takes the eigenvectors of S, for at most {LARGEST:,} nodes; got "
            f"{edges.nodes:,}: take form='iterated'"
        )
    dense = u.new_zeros(edges.nodes, edges.nodes, dtype=torch.float64)
    dense.index_put_((edges.receiver, edges.sender), edges.weight.double(), accumulate=True)
    if not torch.allclose(dense, dense.T, rtol=1e-5, atol=1e-7):
        raise ValueError(
            "the closed form needs a symmetric S, and this graph is directed, or normalize is not "
            "'sym': take form='iterated'"
        )
    values, vectors = torch.linalg.eigh(dense)
    return _Closed.of(u, mixer, values**power, vectors, gamma)


class _Closed(torch.autograd.Function):
    """The solution by its equation, not through the eigenvectors, whose own derivatives do not
    exist where eigenvalues meet. It is its own adjoint, for S and g are symmetric."""

    @staticmethod
    def of(u: Tensor, mixer: Tensor, values: Tensor, vectors: Tensor, gamma: float) -> Tensor:
        function: Any = _Closed
        return function.apply(u, mixer, values, vectors, gamma)

    @staticmethod
    def forward(u: Tensor, mixer: Tensor, values: Tensor, vectors: Tensor, gamma: float) -> Tensor:
        own, turned = torch.linalg.eigh(mixer.double())
        inside = vectors.T @ u.double() @ turned
        inside = inside / (1 - gamma * values[:, None] * own)
        return (vectors @ inside @ turned.T).to(u.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, mixer, ctx.values, ctx.vectors, ctx.gamma = inputs
        ctx.save_for_backward(mixer, output)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        mixer, z = ctx.saved_tensors
        values, vectors = ctx.values, ctx.vectors.to(z.dtype)
        adjoint = _Closed.of(grads[0], mixer, values, ctx.vectors, ctx.gamma)
        spread = vectors @ (values.to(z.dtype)[:, None] * (vectors.T @ z))  # S^p z
        half = ctx.gamma * (spread.T @ adjoint)
        return adjoint, 0.5 * (half + half.T), None, None, None  # of a symmetric matrix


class MGNNI(GraphLayer):
    """Several EIGNN equilibria, of one hop a step, two, ..., joined by attention on each node.

        Z = sum_m beta_m Z_m,  Z_m = gamma S^m Z_m g(F_m) + X,
        beta = softmax over m of q^T tanh(B Z_m + b).

    papers: Liu et al. 2022, eq. 4 to 7.

    Args:
        in_channels: features of a node; -1 for those of the first call.
        out_channels: features of the state.
        scales: hops a step of each equilibrium.
        gamma, flow, normalize, self_loops, layer: as of `EIGNN`.
    """

    entry = "encode"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        scales: tuple[int, ...] = (1, 2),
        gamma: float = 0.8,
        layer: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        if not scales or min(scales) < 1 or len(set(scales)) < len(scales):
            raise ValueError(f"scales must be positive and different; got {scales}")
        self.encode = linear(in_channels, out_channels)
        self.equilibria = nn.ModuleList(
            EIGNN(out_channels, out_channels, gamma=gamma, power=power, layer=layer, **options)
            for power in scales
        )
        for each in self.equilibria:
            each.encode = nn.Identity()  # all are driven by the same
        self.attend = nn.Linear(out_channels, out_channels)
        self.query = nn.Linear(out_channels, 1, bias=False)

    @override
    def reset_parameters(self) -> None:
        for each in self.equilibria:
            cast(EIGNN, each).cell.reset_parameters()
        for each in (self.encode, self.attend, self.query):
            each.reset_parameters()

    def solve(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        **options: Any,
    ) -> tuple[Solution, ...]:
        """Solve for the equilibrium of each scale; see `ImplicitGraphLayer.solve`."""
        edges, weight = self.read(x, edge_index, edge_weight, batch)
        operands = self.encode(x), shared(edges), shared(weight)
        coupled = True if batch is None else batch
        layers = (cast(EIGNN, each).deq for each in self.equilibria)
        return tuple(deq(*operands, coupled=coupled, **options) for deq in layers)

    def join(self, solutions: tuple[Solution, ...]) -> Tensor:
        """Return the sum over the scales, weighed by attention, `(nodes, out_channels)`."""
        states = torch.stack([solution.value for solution in solutions])  # (scales, nodes, width)
        shares = self.query(torch.tanh(self.attend(states))).softmax(0)
        return (shares * states).sum(0)

    @override
    def evaluate(self, x: Tensor, *graph: Any) -> tuple[Tensor, tuple[Solution, ...]]:
        solutions = self.solve(x, *graph)
        return self.join(solutions), solutions
