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
from equilibria.experiments.initialisation import length as initialisation_length
from equilibria.experiments.initialisation import mnist, moments, radius, threshold, transformer
from equilibria.experiments.initialisation import solvers as initialisation_solvers
from equilibria.experiments.initialisation import variance as initialisation_variance
from equilibria.experiments.jacobian import growth as jacobian_growth
from equilibria.experiments.jacobian import language, slope, stability, toy
from equilibria.experiments.jacobian import tables as jacobian_tables
from equilibria.experiments.mdeq import convergence as mdeq_convergence
from equilibria.experiments.mdeq import memory as mdeq_memory
from equilibria.experiments.mdeq import receptive as mdeq_receptive
from equilibria.experiments.mdeq import tables as mdeq_tables

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
        toy,
        slope,
        jacobian_growth,
        jacobian_tables,
        mdeq_tables,
        mdeq_convergence,
        mdeq_receptive,
        mdeq_memory,
        initialisation_length,
        moments,
        initialisation_variance,
        radius,
        threshold,
        initialisation_solvers,
        mnist,
        transformer,
    )
}
"""In the order in which `equilibria reproduce` lists them."""
