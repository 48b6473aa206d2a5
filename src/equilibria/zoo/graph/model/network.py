"""Networks of graph layers, for the classes of nodes or of whole graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import DEQ, VariationalDropout
from equilibria.nn.dropout import dropout
from equilibria.nn.using import layers
from equilibria.run.models.base import ClassifierConfig, EquilibriumModel, Model, Prediction
from equilibria.solve import Solution
from equilibria.zoo.graph.model.ignn import constrain_
from equilibria.zoo.graph.model.implicit import GraphLayer, ImplicitGraphLayer, linear

# --- gcn ------------------------------------------------------------------------------------------

# Graph convolution, the explicit layer that implicit ones are compared with.


class GCN(GraphLayer):
    """Y = A^T X W^T + b, A with self-loops and normalised.

    papers: Kipf and Welling 2017, eq. 2.

    Args:
        in_channels: features of a node; -1 for those of the first call.
        out_channels: features that come out.
        bias: b.
        flow, normalize, self_loops: as of `GraphLayer`.
    """

    affine = True
    entry = "linear"

    def __init__(
        self, in_channels: int, out_channels: int, *, bias: bool = True, **options: Any
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.linear = linear(in_channels, out_channels)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    @override
    def reset_parameters(self) -> None:
        self.linear.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def evaluate(self, x: Tensor, *graph: Any) -> tuple[Tensor, tuple[Solution, ...]]:
        edges, weight = self.read(x, *graph)
        y = edges(self.linear(x), weight)
        return (y if self.bias is None else y + self.bias), ()


class NodeLayer(GraphLayer):
    """A linear map of each node by itself, with the interface of a graph layer."""

    affine = True
    entry = "linear"

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, normalize=None, self_loops=False)
        self.linear = nn.Linear(in_channels, out_channels)

    @override
    def reset_parameters(self) -> None:
        self.linear.reset_parameters()

    @override
    def evaluate(self, x: Tensor, *graph: Any) -> tuple[Tensor, tuple[Solution, ...]]:
        self.read(x, *graph)  # what other networks refuse, this one does too
        return self.linear(x), ()


# --- network --------------------------------------------------------------------------------------


Level = Literal["node", "graph"]

Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""(x, edge_index, edge_weight, batch), as PyTorch Geometric's layers take them."""


@dataclass(frozen=True, kw_only=True)
class GraphConfig(ClassifierConfig):
    """A network of graph layers, and what reads its answer from the last state.

    Args:
        shape: (features,) of a node; null for that of the data.
        classes: number of outputs; null for that of the data.
        level: what is classified, each "node" or each "graph"; null for that of the data.
        hidden: widths of the layers, one after another.
        feature_dropout: dropout rate of the input features.
        dropout: dropout rate before the readout, and between explicit layers.
        pool: how the states of a graph's nodes are pooled: "sum" or "mean".
        float64: compute in double precision: signals that fade over a hundred hops need it.
        skips: a linear map of each layer's input is added to its output, with an ELU in between.
        unit_states: divide each node's state by its length before the readout, so that a signal
            counts where it has faded.
        bias: whether the readout of nodes has a bias.
        readout: "linear", or "last", where the last layer's state is the output, as wide as there
            are classes. Graphs are read out by two linear maps with a ReLU in between.
    """

    layer: ClassVar[type[GraphLayer]]
    options: ClassVar[tuple[str, ...]] = ()
    """Fields that a layer is made with, beside its widths."""

    shape: tuple[int, ...] | None = None
    classes: int | None = None
    level: Level | None = None
    hidden: tuple[int, ...] = (32,)
    feature_dropout: float = 0.0
    dropout: float = 0.5
    pool: Literal["sum", "mean"] = "sum"
    float64: bool = False
    skips: bool = False
    unit_states: bool = False
    bias: bool = True
    readout: Literal["linear", "last"] = "linear"

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "hidden")
        for name, known in (
            ("level", ("node", "graph")),
            ("pool", ("sum", "mean")),
            ("readout", ("linear", "last")),
        ):
            value = getattr(self, name)
            if value not in known and not (name == "level" and value is None):
                raise ValueError(f"{name} must be '{known[0]}' or '{known[1]}'; got {value!r}")
        check_fields(self, "[0, 1)", "dropout", "feature_dropout")
        if self.readout == "last" and self.unit_states:
            raise ValueError("unit_states is for the readout 'linear': it would normalise logits")

    def facts(self) -> tuple[int, int, Level]:
        """Return features, classes and level.

        Raises:
            ValueError: the data have yet to fill them in.
        """
        if self.shape is None or self.classes is None or self.level is None:
            raise ValueError(
                "shape, classes and level are not known: the data fill them in, or give all three, "
                "such as shape=(1433,), classes=7, level='node'"
            )
        return self.shape[0], self.classes, self.level

    def layers(self, widths: Sequence[int], **layer: Any) -> list[GraphLayer]:
        """Return a layer for each pair of neighbouring widths."""
        options = {name: getattr(self, name) for name in self.options}
        if self.implicit:
            options["layer"] = layer
        return [self.layer(a, b, **options) for a, b in pairwise(widths)]

    @property
    @override
    def implicit(self) -> bool:
        return hasattr(self.layer, "solve")

    @override
    def build(self, **layer: Any) -> Model:
        if layer and not self.implicit:
            raise TypeError(
                f"an explicit network has no equilibrium layer to take {', '.join(layer)}: leave "
                "solver and adjoint out, or take the equilibrium model of the same cell"
            )
        features, _, level = self.facts()
        layers = self.layers([features, *self.hidden], **layer)
        single = len(layers) == 1 and isinstance(layers[0], ImplicitGraphLayer)
        plain = level == "node" and not self.skips and self.readout == "linear"
        network = NodeEquilibrium(self, layers) if single and plain else GraphNetwork(self, layers)
        return network.double() if self.float64 else network


class _Read(nn.Module):
    """From the states of nodes to an answer for each node or graph."""

    def __init__(self, config: GraphConfig) -> None:
        super().__init__()
        _, classes, level = config.facts()
        self.config, width = config, config.hidden[-1]
        self.head: nn.Module = nn.Identity()
        if level == "graph":
            if config.readout == "last":
                raise ValueError("the readout 'last' is for nodes: graphs are pooled before theirs")
            self.head = nn.Sequential(
                nn.Linear(width, width),
                nn.ReLU(),
                VariationalDropout(config.dropout),
                nn.Linear(width, classes),
            )
        elif config.readout == "linear":
            self.head = nn.Linear(width, classes, bias=config.bias)
        elif width != classes:
            raise ValueError(
                "readout is 'last', so the last of hidden must be the number of classes, "
                f"{classes}; got {width}"
            )

    @override
    def forward(self, z: Tensor, batch: Tensor | None) -> Tensor:
        config = self.config
        if config.unit_states:
            # Each in a unit of its own first: squares of faint signals would be rounded to nothing.
            unit = z.detach().abs().amax(1, keepdim=True)
            z = z / torch.where(unit > 0, unit, 1.0)
            z = z / torch.where(unit > 0, z.norm(dim=1, keepdim=True), 1.0)
        if config.level == "node":
            drop = config.dropout if config.readout == "linear" else 0.0
            return self.head(dropout(z, drop, self.training))
        if batch is None:
            batch = torch.zeros(len(z), dtype=torch.int64, device=z.device)
        sizes = batch.bincount()
        total = z.new_zeros(len(sizes), z.shape[1]).index_add(0, batch, z)
        return self.head(total if config.pool == "sum" else total / sizes[:, None].to(z))


def _features(inputs: Any, config: GraphConfig, like: Tensor, training: bool) -> Inputs:
    """The model's input with dropout on its features, in the network's precision."""
    if not (isinstance(inputs, tuple | list) and len(inputs) == 4):
        raise TypeError(
            "a graph network takes a tuple (x, edge_index, edge_weight, batch), got "
            f"{type(inputs).__name__}"
        )
    x, edge_index, weight, batch = inputs
    x = dropout(x.to(like.dtype), config.feature_dropout, training)
    return x, edge_index, None if weight is None else weight.to(like.dtype), batch


class GraphNetwork(Model):
    """Graph layers one after another, and a readout."""

    def __init__(self, config: GraphConfig, layers: Sequence[GraphLayer]) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(layers)
        features, _, _ = config.facts()
        widths = [features, *config.hidden]
        self.skips = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths) if config.skips)
        self.read = _Read(config)

    @property
    @override
    def solves_once(self) -> bool:
        return len(layers(self)) == 1

    @override
    def forward(self, x: Any, *, carry: Any = None) -> Prediction:
        """Return the answer for each node or graph.

        Args:
            x: a tuple (x, edge_index, edge_weight, batch), see `read_edges`.
            carry: None, since the model has no memory.
        """
        self.refuse_carry(carry)
        like = next(self.parameters())
        z, *graph = _features(x, self.config, like, self.training)
        solutions: list[Solution] = []
        for number, layer in enumerate(self.layers):
            before, last = z, number == len(self.layers) - 1
            z, found = cast(GraphLayer, layer).evaluate(before, *graph)
            solutions += found
            if self.config.skips:
                z = z + self.skips[number](before)
                z = z if last else nn.functional.elu(z)
            elif layer.affine and not (last and self.config.readout == "last"):
                z = z.relu()
                z = z if last else dropout(z, self.config.dropout, self.training)
        return Prediction(self.read(z, graph[-1]), tuple(solutions))

    @override
    def constrain(self) -> None:
        constrain_(self)


class NodeEquilibrium(EquilibriumModel):
    """One implicit graph layer, and a readout of each node."""

    def __init__(self, config: GraphConfig, layers: Sequence[GraphLayer]) -> None:
        super().__init__()
        self.config = config
        (self.layer,) = cast("Sequence[ImplicitGraphLayer]", layers)
        self.read = _Read(config)

    @property
    def deq(self) -> DEQ:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The equilibrium layer, a part of `layer`."""
        return self.layer.deq

    @override
    def inject(self, x: Any) -> tuple[Any, ...]:
        """Return injection, edges and weights of (x, edge_index, edge_weight, batch)."""
        like = next(self.parameters())
        return self.layer.operands(*_features(x, self.config, like, self.training))

    @override
    def readout(self, z: Tensor) -> Tensor:
        """Return logits, (nodes, classes), from a state (nodes, width)."""
        return self.read(z, None)

    @override
    def forward(self, x: Any, *, carry: Any = None, **options: Any) -> Prediction:
        """Solve for the equilibrium and read each node's answer from it.

        Args:
            x: a tuple (x, edge_index, edge_weight, batch), see `read_edges`.
            carry: None, since the model has no memory.
            options: z0, warm, states and trace, as of `EquilibriumModel`.
        """
        self.refuse_carry(carry)
        operands = self.inject(x)
        coupled = True if x[3] is None else x[3]
        solution = self.deq(*operands, coupled=coupled, **options)
        return Prediction(self.readout(solution.value), (solution,))

    @override
    def constrain(self) -> None:
        constrain_(self)
