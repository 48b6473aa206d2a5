"""Stability: how a fixed point behaves, measured, and put in words."""

from equilibria.stability.examination import Examination, Finding
from equilibria.stability.examine import doctor
from equilibria.stability.jacobian import jacobian_norm, spectral_radius

__all__ = ["Examination", "Finding", "doctor", "jacobian_norm", "spectral_radius"]
