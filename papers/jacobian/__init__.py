"""Bai et al. 2021, Stabilizing Equilibrium Models by Jacobian Regularization."""

from papers.published import BAI_2021

PAPER = BAI_2021
