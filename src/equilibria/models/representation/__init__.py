"""Implicit neural representations: signals as functions of their coordinates."""

from equilibria.models.representation.configs import (
    IMFNConfig,
    InjectedSIRENConfig,
    ISIRENConfig,
    MFNConfig,
    SIRENConfig,
)
from equilibria.models.representation.derivatives import gradient, hessian, laplacian
from equilibria.models.representation.network import ExplicitRepresentation, Representation
from equilibria.models.representation.siren import SIREN

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
