"""Implicit graph networks, with the interface of PyTorch Geometric's layers."""

from equilibria.zoo.graph.model.configs import (
    EIGNNConfig,
    FiniteIGNNConfig,
    GCNConfig,
    GraphMLPConfig,
    IGNNConfig,
    MGNNIConfig,
)
from equilibria.zoo.graph.model.edges import Edges
from equilibria.zoo.graph.model.eignn import EIGNN, MGNNI
from equilibria.zoo.graph.model.ignn import (
    IGNN,
    FiniteIGNN,
    constrain_,
    constrain_after,
    perron_radius,
    project_rows_,
)
from equilibria.zoo.graph.model.network import GCN, GraphConfig, GraphNetwork, NodeEquilibrium

__all__ = [
    "EIGNN",
    "GCN",
    "IGNN",
    "MGNNI",
    "EIGNNConfig",
    "Edges",
    "FiniteIGNN",
    "FiniteIGNNConfig",
    "GCNConfig",
    "GraphConfig",
    "GraphMLPConfig",
    "GraphNetwork",
    "IGNNConfig",
    "MGNNIConfig",
    "NodeEquilibrium",
    "constrain_",
    "constrain_after",
    "perron_radius",
    "project_rows_",
]
