"""How to start a network: its stability over ensembles and scales, predicted and measured.

papers: Agarwala and Schoenholz 2022.
"""

from equilibria.stability.ensembles.measure import sweep
from equilibria.stability.ensembles.recommendation import Recommendation, recommend, tabulate
from equilibria.stability.ensembles.results import Start, Sweep, Trial

__all__ = [
    "Recommendation",
    "Start",
    "Sweep",
    "Trial",
    "recommend",
    "sweep",
    "tabulate",
]
