"""Kag et al. 2019: equilibrated recurrent networks."""

from papers.published import KAG_2019

PAPER = KAG_2019
