"""How the weights of a cell begin: ensembles of matrices, and models filled with them.

Two ensembles with the same variance give deep equilibrium networks that behave differently, because
the same matrix is applied again and again.

papers: Agarwala and Schoenholz 2022.
"""

from equilibria.nn.init.ensembles import antisymmetric_, gaussian_, goe_, orthogonal_
from equilibria.nn.init.initialize import InitializedWeight, initialize
from equilibria.nn.init.maps import ENSEMBLES, Elementwise, Maps, check_ensemble, fill
from equilibria.nn.init.maps import Ensemble as Ensemble
from equilibria.nn.init.normal import normal_
from equilibria.nn.init.weight import RecurrentWeight, recurrent_weights, set_weights

__all__ = [
    "ENSEMBLES",
    "Elementwise",
    "InitializedWeight",
    "Maps",
    "RecurrentWeight",
    "antisymmetric_",
    "check_ensemble",
    "fill",
    "gaussian_",
    "goe_",
    "initialize",
    "normal_",
    "orthogonal_",
    "recurrent_weights",
    "set_weights",
]
