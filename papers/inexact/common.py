"""Networks trained by the exact gradient and by inexact ones, everything else equal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from equilibria.run import recipe as recipes
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures import timing
from equilibria.run.studies.measures.probes import Cosines
from equilibria.run.studies.study import Context, Scale
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Pivot, mean, spread
from equilibria.solve import Adjoint, Implicit, JacobianFree, NeumannPhantom, Phantom
from papers.jacobian import images

SEEDS = (0, 1, 2)

IMAGES: Mapping[str, Adjoint | None] = {
    "exact": None,
    "UPG, k = 5, damping .5": Phantom(steps=5, damping=0.5),
    "NPG, k = 5, damping .5": NeumannPhantom(steps=5, damping=0.5),
    "Jacobian-free": JacobianFree(),
}
"""The adjoints that networks on images learn by; None for the recipe's own, the exact one."""

TEXT: Mapping[str, Adjoint | None] = {"exact": None, "UPG, k = 5, damping .8": Phantom(damping=0.8)}
"""The same for language models."""

ESTIMATORS: Mapping[str, Adjoint] = {
    "Jacobian-free": JacobianFree(),
    "NPG, k = 2": NeumannPhantom(steps=2, damping=1.0),
    "NPG, k = 5": NeumannPhantom(steps=5, damping=1.0),
    "NPG, k = 5, damping .5": NeumannPhantom(steps=5, damping=0.5),
    "UPG, k = 5": Phantom(steps=5, damping=1.0),
    "UPG, k = 5, damping .5": Phantom(steps=5, damping=0.5),
}
"""Whose cosine with the exact gradient is probed after each epoch."""


def image_training(adjoint: str, scale: Scale, seed: int) -> Training:
    """Return the training of the network without penalty of `jacobian/tables` by an adjoint."""
    recipe: Any = images.recipe_of("plain", scale, seed)
    minutes = {"cpu": 4, "gpu": 240}[scale]
    return Training(_by(recipe, IMAGES[adjoint]), minutes, probe=Cosines(ESTIMATORS))


def text_training(adjoint: str, scale: Scale, seed: int) -> Training:
    """Return the training of a language model on Penn Treebank by an adjoint."""
    name = {"cpu": "lm-ptb", "gpu": "lm-ptb-gpu"}[scale]
    recipe: Any = recipes.load(name, ["--seed", str(seed)])
    return Training(_by(recipe, TEXT[adjoint]), {"cpu": 10, "gpu": 240}[scale])


def _by(recipe: Any, adjoint: Adjoint | None) -> Any:
    """The recipe with another adjoint."""
    if adjoint is None:
        assert isinstance(cast(Any, recipe).adjoint, Implicit)
        return recipe
    return replace(recipe, adjoint=adjoint)


@identified_as("_trainings.times")
def times(context: Context) -> Iterable[dict[str, Any]]:
    """Milliseconds of a step by each `trained` network's adjoint, all interleaved, and `faster`:
    the exact one's over its own."""
    runs = context.runs.items()
    trainers = {name: run.trainer(trained=True, before_end=timing.SPENT) for name, run in runs}
    found = timing.steps(trainers)
    exact = found["exact"]["step"]
    for name, each in found.items():
        step = each["step"]
        yield {"trained": name, "step_ms": step, "faster": exact and step and exact / step}


def step_times(above: Sequence[Sequence[Any]], note: str = "") -> Pivot:
    """Return the table of what `times` measures, below the published rows."""
    return Pivot(
        title="Table 5.2: steps",
        index={"trained": "trained by"},
        each="trained",
        where={"gradient": "times"},
        values={
            "step, ms": mean("step_ms"),
            "times as fast as exact": spread("faster", 1, ".2f"),
        },
        above=above,
        note=note,
    )
