"""Implicit neural representations: signals as functions of their coordinates."""

from equilibria.zoo.signal.model.configs import (
    IMFNConfig,
    InjectedSIRENConfig,
    ISIRENConfig,
    MFNConfig,
    SIRENConfig,
)
from equilibria.zoo.signal.model.derivatives import gradient, hessian, laplacian
from equilibria.zoo.signal.model.network import SIREN, ExplicitRepresentation, Representation

__all__ = [
    "SIREN",
    "ExplicitRepresentation",
    "IMFNConfig",
    "ISIRENConfig",
    "InjectedSIRENConfig",
    "MFNConfig",
    "Representation",
    "SIRENConfig",
    "gradient",
    "hessian",
    "laplacian",
]
