"""Implicit graph neural networks."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_within
from equilibria.solve import Solution
from equilibria.zoo.graph.model.edges import Edges, as_tensor, read_edges
from equilibria.zoo.graph.model.implicit import GraphLayer, ImplicitGraphLayer, linear

# --- constraint -----------------------------------------------------------------------------------

# What keeps an implicit graph layer well posed: bounds, restored after each step.


@torch.no_grad()
def project_rows_(weight: Tensor, bound: float) -> Tensor:
    """Moves each row, in place, to the nearest point of the l1 ball ||row||_1 <= bound.

    Then ||weight||_inf <= bound. Rows inside the ball stay bit for bit.

    papers: Gu et al. 2020, eq. 8; Duchi et al. 2008, fig. 1.

    Args:
        weight: `(rows, columns)`.
        bound: >= 0.
    """
    if weight.is_meta:
        return weight
    outside = weight.abs().sum(1) > bound
    if not bool(outside.any()):
        return weight
    rows = weight[outside]
    size = rows.abs().sort(dim=1, descending=True).values
    excess = size.cumsum(1) - bound
    count = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=rows.dtype)
    kept = (size * count > excess).sum(1, keepdim=True).clamp_min(1)
    shrink = excess.gather(1, kept - 1) / kept
    near = rows.sign() * (rows.abs() - shrink).clamp_min(0)
    # Rounding may leave a row just outside.
    near = near * (bound / near.abs().sum(1, keepdim=True).clamp_min(bound or 1.0)).clamp_max(1)
    weight[outside] = near
    return weight


@torch.no_grad()
def perron_radius(
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    nodes: int | None = None,
    *,
    rtol: float = 1e-6,
    max_products: int = 10_000,
) -> float:
    """An upper bound of lambda_PF(|A|), the spectral radius of a non-negative matrix.

    By power iteration with A + c I, c > 0, which makes all that oscillates decay: for any positive
    v the radius of A is at most max_i ((A + c I) v)_i / v_i - c (Collatz and Wielandt), whether A
    is connected or not. The bound falls towards the radius; of a nilpotent A, such as a directed
    chain, it falls slowly, and is sound wherever it is stopped.

    Args:
        edge_index: `(2, edges)` int64, or a sparse adj_t `(nodes, nodes)`.
        edge_weight: `(edges,)`, >= 0; None for 1.
        nodes: how many there are; None for as many as have edges.
        rtol: relative to the largest sum of the weights that a node receives; stop when the bound
            falls by less in ten products.
        max_products: at most.
    """
    edge_index = as_tensor(edge_index)
    if nodes is None and edge_index.layout is not torch.strided:
        nodes = edge_index.shape[0]
    if nodes is None:
        nodes = int(edge_index.max()) + 1 if edge_index.numel() else 1
    like = torch.zeros(nodes, 1, dtype=torch.float64, device=edge_index.device)
    weight = None if edge_weight is None else edge_weight.detach().double()
    edges, _ = read_edges(like, edge_index, weight)
    v = torch.ones_like(like)
    largest = float(edges.multiply(v, False).max())
    shift, bound, before = 0.5 * largest, largest, largest
    for product in range(1, max_products + 1):
        image = edges.multiply(v, False) + shift * v
        bound = min(bound, float((image / v).max()) - shift)
        v = (image / image.max()).clamp_min(1e-200)
        if product % 10 == 0:
            if before - bound <= rtol * largest:
                break
            before = bound
    return max(bound, 0.0)


@torch.no_grad()
def constrain_(module: nn.Module) -> None:
    """Restores the bounds of all layers inside that have any, in place."""
    for part in module.modules():
        project: Any = getattr(part, "project_", None)
        if callable(project):
            project()


def constrain_after(optimizer: torch.optim.Optimizer, module: nn.Module) -> Any:
    """Restores the bounds of a module's layers after every step of an optimiser.

    Call it once, after both have been made. The trainer of this package does so by itself.

    Returns:
        torch's handle, whose `remove()` ends it.

    Raises:
        TypeError: the optimiser is none.
    """

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: expected one of torch.optim, got {type(optimizer).__name__}")

    def after(*_: Any) -> None:
        constrain_(module)

    return optimizer.register_step_post_hook(after)


# --- ignn -----------------------------------------------------------------------------------------


PHI = {"relu": torch.relu, "tanh": torch.tanh, "leaky_relu": nn.functional.leaky_relu}
"""Activations that expand nothing: |phi(a) - phi(b)| <= |a - b|."""

Initial = Literal["identity", "uniform"]


class IGNNCell(nn.Module):
    """f(Z) = phi(A^T Z W^T + U), nodes as rows."""

    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        if activation not in PHI:
            raise ValueError(f"activation must be one of {', '.join(PHI)}; got {activation!r}")
        self.linear = nn.Linear(width, width, bias=False)
        self.activation = activation

    @override
    def forward(self, z: Tensor, u: Tensor, edges: Edges, weight: Tensor | None = None) -> Tensor:
        """Evaluate f once; `u` is the injection, `(nodes, width)`."""
        return PHI[self.activation](edges(self.linear(z), weight) + u)


class _Weights(GraphLayer):
    """W inside its ball, Omega and their bound."""

    entry = "omega"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kappa: float = 0.9,
        radius: float | None = None,
        activation: str = "relu",
        initial: Initial = "identity",
        bias: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        check_within("(0, 1)", kappa=kappa)
        if self.normalize is None and radius is None:
            raise ValueError(
                "normalize is None, so the spectral radius of the graphs is unknown: give radius, "
                "the largest eq.models.graph.perron_radius(edge_index, edge_weight) of them (1.0 "
                "for a matrix that you have normalised), and self_loops=False if the matrix has "
                "its self-loops"
            )
        if self.normalize is not None and radius is not None:
            raise ValueError(
                f"radius is given and normalize is {self.normalize!r}, which makes it 1"
            )
        if radius is not None:
            check_within("(0, inf]", radius=radius)
        if initial not in ("identity", "uniform"):
            raise ValueError(f"initial must be 'identity' or 'uniform'; got {initial!r}")
        self.kappa = kappa
        # A self-loop adds 1 to the radius of a matrix that is not normalised afterwards.
        self.bound = kappa / (1.0 if radius is None else radius + self.self_loops)
        self.initial: Initial = initial
        self.omega = linear(in_channels, out_channels)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.activation = activation

    @property
    def recurrent(self) -> nn.Linear:
        """W."""
        return next(part for part in self.modules() if isinstance(part, IGNNCell)).linear

    @torch.no_grad()
    def _begin(self) -> None:
        weight = self.recurrent.weight
        if self.initial == "identity":
            nn.init.eye_(weight).mul_(self.bound)
        else:
            nn.init.uniform_(weight, -1.0, 1.0).div_(len(weight) ** 0.5)
        self.project_()

    @override
    def reset_parameters(self) -> None:
        self.omega.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self._begin()

    def project_(self) -> None:
        """Move the rows of W, in place, into the ball that keeps the layer well posed."""
        project_rows_(self.recurrent.weight, self.bound)

    def inject(self, x: Tensor, edges: Edges, weight: Tensor | None) -> Tensor:
        """Return A^T X Omega^T (+ b), `(nodes, out_channels)`."""
        u = edges(self.omega(x), weight)
        return u if self.bias is None else u + self.bias


class IGNN(_Weights, ImplicitGraphLayer):
    """Z = phi(A^T Z W^T + A^T X Omega^T), solved on the nodes of each graph.

    There is one solution, and plain iteration finds it, where ||W||_inf < 1 / lambda_PF(|A|). W
    starts inside ||W||_inf <= kappa / lambda_PF(|A|); call `project_()` after each step of an
    optimiser, or `constrain_after` once. A normalised A has lambda_PF <= 1.

    papers: Gu et al. 2020, eq. 1 and Theorem 4.1; Bai 2022 (thesis), Table 5.3.

    Args:
        in_channels: features of a node; -1 for those of the first call.
        out_channels: features of the state.
        kappa: the contraction, in (0, 1). A signal fades by no more than
            kappa / 2 / (1 - kappa / 2) a hop along a directed chain with self-loops, .82 at .9.
        radius: the largest lambda_PF(|A|) of the graphs to come, see `perron_radius`, where
            `normalize` is None; without the layer's own self-loops.
        activation: "relu", "tanh" or "leaky_relu".
        initial: W at the start: "identity", as large as allowed, so that every feature travels as
            far as it can; or "uniform", each entry at random, of size 1 / sqrt(width).
        bias: add one to the injection; the paper's equation has none.
        flow, normalize, self_loops: as of `GraphLayer`.
        layer: keywords of the `DEQ`: solver, eval_solver, adjoint, throw.

    Example:
        >>> layer = IGNN(-1, 16)
        >>> z = layer(x, edge_index)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        layer: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.deq = self.equilibrium(IGNNCell(out_channels, self.activation), layer or {})
        self._begin()


class FiniteIGNN(_Weights):
    """The same cell applied a fixed number of times, from zero: the explicit counterpart.

    Args:
        steps: how often, >= 1.
        options: as of `IGNN`.
    """

    def __init__(self, in_channels: int, out_channels: int, *, steps: int = 2, **options: Any):
        super().__init__(in_channels, out_channels, **options)
        check_within("[1, inf)", steps=steps)
        self.steps = steps
        self.cell = IGNNCell(out_channels, self.activation)
        self._begin()

    @override
    def evaluate(self, x: Tensor, *graph: Any) -> tuple[Tensor, tuple[Solution, ...]]:
        edges, weight = self.read(x, *graph)
        u = self.inject(x, edges, weight)
        z = torch.zeros_like(u)
        for _ in range(self.steps):
            z = self.cell(z, u, edges, weight)
        return z, ()
