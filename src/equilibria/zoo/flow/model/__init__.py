"""Optical flow: RAFT and GMA, and networks whose refinement is solved as an equilibrium."""

from equilibria.zoo.flow.model.cell import UpdateCell, UpdateWidths
from equilibria.zoo.flow.model.configs import (
    DEQGMAConfig,
    DEQRAFTConfig,
    DEQRAFTSmallConfig,
    EquilibriumFlowConfig,
    FlowConfig,
    GMAConfig,
    RAFTConfig,
    RAFTSmallConfig,
)
from equilibria.zoo.flow.model.correlation import AllPairs, OnDemand
from equilibria.zoo.flow.model.network import DEQFlow, UnrolledFlow
from equilibria.zoo.flow.model.weights import WeightsError, load_checkpoint

__all__ = [
    "AllPairs",
    "DEQFlow",
    "DEQGMAConfig",
    "DEQRAFTConfig",
    "DEQRAFTSmallConfig",
    "EquilibriumFlowConfig",
    "FlowConfig",
    "GMAConfig",
    "OnDemand",
    "RAFTConfig",
    "RAFTSmallConfig",
    "UnrolledFlow",
    "UpdateCell",
    "UpdateWidths",
    "WeightsError",
    "load_checkpoint",
]
