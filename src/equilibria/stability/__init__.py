"""Stability: how a fixed point behaves, measured, put in words, and trained for."""

from equilibria.stability.audit import AdaptiveAdjoint, AdjointAudit, Audit
from equilibria.stability.comparison import Compared, Comparison, compare_adjoints
from equilibria.stability.derivative_check import Cut
from equilibria.stability.examination import Examination, Finding, Training
from equilibria.stability.examine import doctor
from equilibria.stability.fixed_points import Mapped
from equilibria.stability.jacobian import jacobian_norm, spectral_radius
from equilibria.stability.penalty import FixedPointCorrection, jacobian_penalty
from equilibria.stability.probes import (
    Estimate,
    Spread,
    StartProbe,
    StepResidual,
    over_draws,
    probe_start,
)
from equilibria.stability.rescale import Measured, Rescaled, UnreachableRadiusError, set_radius

__all__ = [
    "AdaptiveAdjoint",
    "AdjointAudit",
    "Audit",
    "Compared",
    "Comparison",
    "Cut",
    "Estimate",
    "Examination",
    "Finding",
    "FixedPointCorrection",
    "Mapped",
    "Measured",
    "Rescaled",
    "Spread",
    "StartProbe",
    "StepResidual",
    "Training",
    "UnreachableRadiusError",
    "compare_adjoints",
    "doctor",
    "jacobian_norm",
    "jacobian_penalty",
    "over_draws",
    "probe_start",
    "set_radius",
    "spectral_radius",
]
