"""The components of a learned solver: an initial guess and mixing weights."""

from equilibria.nn.neural.initialisers import Initialiser, initialiser_for
from equilibria.nn.neural.learned import Learned
from equilibria.nn.neural.mixers import GramMixer, PooledMixer

__all__ = ["GramMixer", "Initialiser", "Learned", "PooledMixer", "initialiser_for"]
