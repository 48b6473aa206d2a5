"""Bai et al. 2019, Deep Equilibrium Models: its tables and figures."""
