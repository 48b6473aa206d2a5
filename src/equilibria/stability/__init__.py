"""Stability: how a fixed point behaves, measured, put in words, and trained for."""

from equilibria.stability.correction import FixedPointCorrection
from equilibria.stability.examination import Examination, Finding, Training
from equilibria.stability.examine import doctor
from equilibria.stability.jacobian import jacobian_norm, spectral_radius
from equilibria.stability.penalty import jacobian_penalty

__all__ = [
    "Examination",
    "Finding",
    "FixedPointCorrection",
    "Training",
    "doctor",
    "jacobian_norm",
    "jacobian_penalty",
    "spectral_radius",
]
