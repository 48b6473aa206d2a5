"""Chapter 6 of Bai 2022: neural solvers of equilibrium models."""

from papers.published import BAI_2022

PAPER = BAI_2022
