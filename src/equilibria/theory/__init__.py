"""What an equilibrium network does at its start, predicted from the ensemble of its weights.

Closed forms and self-consistent solutions in float64, in the limit of many units. V is the average
squared singular value of W, the square of the `scale` that `equilibria.nn.init` takes.

papers: Agarwala and Schoenholz 2022.
"""

from equilibria.theory.activations import (
    ACTIVATIONS,
    Activation,
    Moments,
    as_activation,
    hard_tanh_moments,
    relu_moments,
)
from equilibria.theory.errata import ERRATA, Erratum, errata_table
from equilibria.theory.kernels import Pair, linear_nngp, linear_ntk, nngp, ntk
from equilibria.theory.linear import (
    gaussian_limit,
    length_variance,
    length_variance_exponent,
    second_moment,
    second_moment_after,
    second_moment_exponent,
)
from equilibria.theory.meanfield import MeanField, NoMeanFieldError, mean_field
from equilibria.theory.resolvent import (
    resolvent_density,
    resolvent_edges,
    resolvent_moments,
    resolvent_transform,
)
from equilibria.theory.spectrum import (
    critical_scale,
    goe_density,
    goe_radius,
    radius_at,
    spectral_radius,
)
from equilibria.theory.traces import critical_V

__all__ = [
    "ACTIVATIONS",
    "ERRATA",
    "Activation",
    "Erratum",
    "MeanField",
    "Moments",
    "NoMeanFieldError",
    "Pair",
    "as_activation",
    "critical_V",
    "critical_scale",
    "errata_table",
    "gaussian_limit",
    "goe_density",
    "goe_radius",
    "hard_tanh_moments",
    "length_variance",
    "length_variance_exponent",
    "linear_nngp",
    "linear_ntk",
    "mean_field",
    "nngp",
    "ntk",
    "radius_at",
    "relu_moments",
    "resolvent_density",
    "resolvent_edges",
    "resolvent_moments",
    "resolvent_transform",
    "second_moment",
    "second_moment_after",
    "second_moment_exponent",
    "spectral_radius",
]
