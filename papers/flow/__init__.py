"""Chapter 7 of Bai 2022 (thesis): optical flow at equilibrium."""

from papers.published import BAI_2022

PAPER = BAI_2022
