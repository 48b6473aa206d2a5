"""Small networks for optical flow, and their trainings on generated pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equilibria.experiments import counterpart
from equilibria.experiments.study import Scale
from equilibria.experiments.training import Training
from equilibria.run import recipe as recipes
from equilibria.zoo.flow.model.configs import RAFTConfig

__all__ = ["NETWORKS", "RAFT", "RANDOM", "SEEDS", "THESIS", "training_of"]

SEEDS = (0, 1, 2)
RAFT, THESIS = "RAFT, 12 steps", "DEQ-RAFT"
RANDOM = "DEQ-RAFT, random starts"
"""The solves of every second training sample begin anywhere."""

_NONE = ("--correction.name", "null")
_EXACT = (
    *("--adjoint.name", "Implicit", "--adjoint.linear.name", "Anderson"),
    *("--adjoint.linear.period", "3"),
    *("--adjoint.linear.rtol", "1e-2", "--adjoint.linear.max_evals", "18"),
)
NETWORKS: Mapping[str, tuple[Sequence[str], float]] = {
    RAFT: ((), 15.0),
    THESIS: ((), 15.0),
    RANDOM: (("--model.start_noise", "8"), 15.0),
    "DEQ-RAFT, no correction": (_NONE, 15.0),
    "DEQ-RAFT, exact gradient": ((*_NONE, *_EXACT), 25.0),
    "DEQ-RAFT, exact gradient, Jacobian penalty": (
        (*_NONE, *_EXACT, "--regulariser.gamma", "0.1", "--regulariser.probability", "0.4"),
        30.0,
    ),
    "DEQ-RAFT, recipe of Chairs": (("--solver.max_evals", "36", "--correction.count", "5"), 25.0),
}
"""What is changed of the recipe, and an estimate of its minutes."""


def training_of(network: str, seed: int, scale: Scale = "cpu") -> Training:
    """Return the training of one of `NETWORKS`."""
    words, minutes = NETWORKS[network]
    words = ["--seed", str(seed), *words]
    if scale == "gpu":
        recipe: Any = recipes.load("flow-layers-gpu", words)
        if network == RAFT:
            recipe = counterpart.with_model(recipe, RAFTConfig(), "RAFT on generated pairs")
        return Training(recipe=recipe, minutes=240)
    name = "flow-layers-raft" if network == RAFT else "flow-layers"
    return Training(recipe=recipes.load(name, words), minutes=minutes)
