"""Agarwala and Schoenholz 2022: what weights to start from."""

from papers.published import AGARWALA_2022

PAPER = AGARWALA_2022
