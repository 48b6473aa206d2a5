"""Optical flow: RAFT and GMA, and networks whose refinement is solved as an equilibrium."""

from equilibria.models.flow.cell import UpdateCell, UpdateWidths
from equilibria.models.flow.configs import (
    DEQGMAConfig,
    DEQRAFTConfig,
    DEQRAFTSmallConfig,
    EquilibriumFlowConfig,
    FlowConfig,
    GMAConfig,
    RAFTConfig,
    RAFTSmallConfig,
)
from equilibria.models.flow.correlation import AllPairs, OnDemand
from equilibria.models.flow.network import DEQFlow, UnrolledFlow
from equilibria.models.flow.weights import WeightsError, load_checkpoint

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
