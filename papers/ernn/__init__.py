"""Kag et al. 2019: equilibrated recurrent networks."""
