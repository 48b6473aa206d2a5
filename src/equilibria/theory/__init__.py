"""What an equilibrium network does at its start, predicted from the ensemble of its weights.

Closed forms and self-consistent solutions in float64, in the limit of many units. V is the average
squared singular value of W, the square of the `scale` that `equilibria.nn.init` takes.

papers: Agarwala and Schoenholz 2022.
"""

from equilibria.theory.errata import ERRATA, Erratum, errata_table
from equilibria.theory.length import exponent, length_variance
from equilibria.theory.linear import (
    gaussian_limit,
    second_moment,
    second_moment_after,
    second_moment_exponent,
)
from equilibria.theory.resolvent import (
    resolvent_density,
    resolvent_edges,
    resolvent_moments,
    resolvent_transform,
)
from equilibria.theory.traces import critical_V

__all__ = [
    "ERRATA",
    "Erratum",
    "critical_V",
    "errata_table",
    "exponent",
    "gaussian_limit",
    "length_variance",
    "resolvent_density",
    "resolvent_edges",
    "resolvent_moments",
    "resolvent_transform",
    "second_moment",
    "second_moment_after",
    "second_moment_exponent",
]
