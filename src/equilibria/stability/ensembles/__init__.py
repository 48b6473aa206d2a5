"""How to start a network: its stability over ensembles and scales, predicted and measured.

papers: Agarwala and Schoenholz 2022.
"""

from equilibria.stability.ensembles.measure import sweep
from equilibria.stability.ensembles.recommendation import Recommendation, recommend
from equilibria.stability.ensembles.results import Start, Sweep, Trial
from equilibria.stability.ensembles.table import tabulate

__all__ = [
    "Recommendation",
    "Start",
    "Sweep",
    "Trial",
    "recommend",
    "sweep",
    "tabulate",
]
