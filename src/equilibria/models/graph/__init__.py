"""Implicit graph networks, with the interface of PyTorch Geometric's layers."""

from equilibria.models.graph.configs import (
    EIGNNConfig,
    FiniteIGNNConfig,
    GCNConfig,
    GraphMLPConfig,
    IGNNConfig,
    MGNNIConfig,
)
from equilibria.models.graph.constraint import (
    constrain_,
    constrain_after,
    perron_radius,
    project_rows_,
)
from equilibria.models.graph.edges import Edges
from equilibria.models.graph.eignn import EIGNN, MGNNI
from equilibria.models.graph.gcn import GCN
from equilibria.models.graph.ignn import IGNN, FiniteIGNN
from equilibria.models.graph.network import GraphConfig, GraphNetwork, NodeEquilibrium

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
