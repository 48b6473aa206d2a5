"""Bai et al. 2019, Deep Equilibrium Models: its tables and figures."""

from papers.published import BAI_2019

PAPER = BAI_2019
