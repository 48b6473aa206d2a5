"""How to start a network: its stability over ensembles and scales, predicted, measured, in words.

papers: Agarwala and Schoenholz 2022.
"""

from equilibria.stability.ensembles.choice import Range
from equilibria.stability.ensembles.measure import sweep
from equilibria.stability.ensembles.recommendation import Recommendation, recommend
from equilibria.stability.ensembles.results import Forecast, Start, Sweep, Trial

__all__ = [
    "Forecast",
    "Range",
    "Recommendation",
    "Start",
    "Sweep",
    "Trial",
    "recommend",
    "sweep",
]
