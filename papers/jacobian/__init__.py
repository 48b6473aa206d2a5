"""Bai et al. 2021, Stabilizing Equilibrium Models by Jacobian Regularization."""
