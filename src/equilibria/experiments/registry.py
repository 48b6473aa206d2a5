"""All experiments by name."""

from __future__ import annotations

from equilibria.experiments.deq import (
    convergence,
    growth,
    imbalance,
    memory,
    solvers,
    tables,
    tolerance,
)
from equilibria.experiments.experiment import Experiment
from equilibria.experiments.jacobian import language, stability

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        tables,
        convergence,
        growth,
        solvers,
        tolerance,
        memory,
        imbalance,
        stability,
        language,
    )
}
"""In the order in which `equilibria reproduce` lists them."""
