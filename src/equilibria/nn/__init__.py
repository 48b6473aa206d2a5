"""Layers: the deep equilibrium layer and what goes into its cell."""

from equilibria.nn import constructions, init
from equilibria.nn.deq import DEQ
from equilibria.nn.dropout import VariationalDropout
from equilibria.nn.normalisation import spectral_norm, weight_norm

__all__ = ["DEQ", "VariationalDropout", "constructions", "init", "spectral_norm", "weight_norm"]
