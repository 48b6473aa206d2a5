"""Equilibrium networks that reason, and the networks of fixed depth beside them."""
