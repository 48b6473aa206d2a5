"""Training on answers at random depths and from random starts, so that neither matters."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria import draws
from equilibria.checks import check_fields
from equilibria.nn import using
from equilibria.run.hooks import Hook
from equilibria.run.models import EquilibriumModel, Model
from equilibria.solve import Phantom, Picard, Unrolled


@dataclass(frozen=True, kw_only=True)
class RandomPath:
    """Trains the iterate after a random number of evaluations, from random starts.

        n ~ U{budget},    z_n without a gradient,    then `steps` evaluations with one,

    and the loss is that of z_(n + steps), whatever the residuals are. A network that answers right
    wherever it is cut off, and wherever it began, has an equilibrium that is the answer: it is
    path-independent, and goes on to solve instances that need more evaluations than it was ever
    trained with. Evaluation solves by the recipe's solver. No tolerance is asked of the training
    steps: the log shows MAX_EVALS for them. A recipe's `correction` adds losses of earlier
    iterates, under "phantom" of those `steps` evaluations later.

    Args:
        budget: the fewest and the most evaluations without a gradient.
        steps: evaluations with a gradient; of no effect if that is exact.
        noise: share of a batch, about, that starts from standard normal noise; the others start as
            the layer does.
        gradient: "phantom", of the last `steps` evaluations (two more, at z_n and z_(n + steps),
            measure residuals); "unrolled", of all; or "exact", of the equilibrium, by the recipe's
            solver and adjoint, for which `budget` and `steps` have no meaning.

    papers: Anil et al. 2022; Bansal et al. 2022, sec. 3.2.
    """

    budget: tuple[int, int] = (0, 20)
    steps: int = 8
    noise: float = 0.0
    gradient: Literal["phantom", "unrolled", "exact"] = "phantom"

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "steps")
        check_fields(self, "[0, 1]", "noise")
        least, most = self.budget
        if not 0 <= least <= most:
            raise ValueError(
                f"budget must be two increasing numbers of evaluations, such as 0 and 20; got "
                f"{least} and {most}"
            )


class PathHook(Hook):
    """Solves as a `RandomPath` says in each step.

    Args:
        config: how.
        model: whose equilibrium layers they are.
        seed: of the budgets.

    Raises:
        ValueError: starts are to be noise, and the model takes none, or its rows are coupled.
    """

    name = "path"

    def __init__(self, config: RandomPath, model: Model, seed: int) -> None:
        samples = isinstance(model, EquilibriumModel) and not model.deq.coupled
        if config.noise and not samples:
            raise ValueError(
                f"path.noise is {config.noise:g}, a share of the samples, and the layers of "
                f"{type(model).__name__} have no start of its own for each sample: set path.noise "
                "to 0"
            )
        self.config, self.model, self.seed = config, model, seed

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        if self.config.gradient == "exact":
            yield
            return
        evals = random.Random(f"path {self.seed} {step}").randint(*self.config.budget)
        steps = self.config.steps
        # Evaluation n + 1 is that of z_n, which a solve of n + 1 evaluations returns as its last.
        solver = Picard(rtol=0.0, max_evals=evals + 1, patience=None)
        adjoint = Phantom(steps=steps, damping=1.0)
        if self.config.gradient == "unrolled":
            adjoint = Unrolled(max_evals=evals + steps)
        with using(self.model, solver=solver, adjoint=adjoint, returns="last"):
            yield

    def options(self) -> dict[str, Any]:
        return {"z0": self._draw_starts} if self.config.noise else {}

    def _draw_starts(self, z0: Any) -> Any:
        """Replace the start of a random share of the samples by noise."""
        leaves, spec = pytree.tree_flatten(z0)
        lots = draws.for_samples(torch.empty(len(leaves[0])), Tensor.uniform_)
        noisy = (lots < self.config.noise).to(leaves[0].device)
        found = []
        for leaf in leaves:
            noise = draws.for_samples(torch.empty_like(leaf), Tensor.normal_)
            found.append(torch.where(noisy.view(-1, *[1] * (leaf.ndim - 1)), noise, leaf))
        return pytree.tree_unflatten(found, spec)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass
