"""Layers: the deep equilibrium layer and what goes into its cell."""

from equilibria.nn import constructions, init
from equilibria.nn.deq import DEQ
from equilibria.nn.dropout import VariationalDropout
from equilibria.nn.normalisation import spectral_norm, weight_norm
from equilibria.nn.using import using
from equilibria.nn.value import Value
from equilibria.nn.weight_dropout import weight_dropout

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
