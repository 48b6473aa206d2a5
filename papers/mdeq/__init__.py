"""Chapter 3 of Bai 2022 (thesis): multiscale equilibrium networks."""

from papers.published import BAI_2022

PAPER = BAI_2022
