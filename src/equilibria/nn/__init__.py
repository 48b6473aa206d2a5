"""Layers: the deep equilibrium layer and what goes into its cell."""

from equilibria.nn import constructions, init
from equilibria.nn.deq import DEQ, Value
from equilibria.nn.dropout import VariationalDropout, weight_dropout
from equilibria.nn.normalization import spectral_norm, weight_norm
from equilibria.nn.using import using

__all__ = [
    "DEQ",
    "Value",
    "VariationalDropout",
    "constructions",
    "init",
    "spectral_norm",
    "using",
    "weight_dropout",
    "weight_norm",
]
