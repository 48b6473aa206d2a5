"""Graph networks: their trainings, and what is read from them."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from equilibria.run import recipe as recipes
from equilibria.run.models import ModelConfig
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Context
from equilibria.run.studies.training import Training
from equilibria.run.trainer import Trainer
from equilibria.solve import Adjoint, Phantom
from equilibria.zoo.graph.model import EIGNNConfig, GCNConfig, GraphMLPConfig
from papers.measures import counterpart

FOLDS = 10
METHODS: Mapping[str, Adjoint | None] = {
    "exact": None,
    "UPG, k = 5, damping .5": Phantom(steps=5, damping=0.5),
    "UPG, k = 5, damping .8": Phantom(steps=5, damping=0.8),
    "UPG, k = 5, damping 1": Phantom(steps=5, damping=1.0),
}
"""What graph classification is learned by."""

DEEP = "exact, three layers"
"""The network of the paper: three equilibria, one after another."""

NODES: Mapping[str, ModelConfig | Adjoint | None] = {
    "IGNN, exact": None,
    "IGNN, UPG, k = 5, damping .5": Phantom(steps=5, damping=0.5),
    "GCN": GCNConfig(feature_dropout=0.5),
    "MLP": GraphMLPConfig(feature_dropout=0.5),
}
"""What learns Cora: the recipe's network, by another adjoint, or another network."""

OPTIONS: Any = {"hidden": (16,), "dropout": 0.0, "unit_states": True, "bias": False}
CHAINS: Mapping[str, ModelConfig | None] = {
    "IGNN": None,
    "EIGNN, iterated": EIGNNConfig(normalize="row", float64=True, **OPTIONS),
    "GCN, two layers": GCNConfig(normalize="row", float64=True, hidden=(16,), dropout=0.0),
}
"""What learns chains."""


@dataclass(frozen=True)
class Tested:
    """A probe of the accuracy on the test split: the protocol that chooses by it needs it."""

    def __call__(self, trainer: Trainer) -> dict[str, Any]:
        """Return `test`, the accuracy of a trainer's model."""
        return {"test": trainer.evaluate("test")["accuracy"]}


def node_training(network: str, seed: int) -> Training:
    """Return the training of one of `NODES` on Cora."""
    recipe = replace(_load("cora"), seed=seed)
    return Training(_with(recipe, NODES[network]), 0.6)


def chain_training(network: str, length: int, directed: bool, seed: int) -> Training:
    """Return the training of one of `CHAINS`."""
    recipe = replace(_load("chains"), seed=seed)
    normalize = "row" if directed else "sym"
    task = replace(recipe.task, length=length, directed=directed)
    recipe = replace(recipe, task=task, model=replace(recipe.model, normalize=normalize))
    other: Any = CHAINS[network]
    if other is not None:
        other = replace(other, normalize=normalize)
    return Training(_with(recipe, other), length / 50)


def fold_training(data: str, method: str, fold: int) -> Training:
    """Return the training on a fold of a set of graphs: by one of `METHODS`, of three implicit
    layers, or of a GCN."""
    recipe = _load(data)
    recipe = replace(recipe, task=replace(recipe.task, fold=fold))
    if method == DEEP:
        recipe = replace(recipe, model=replace(recipe.model, hidden=(64, 64, 64)))
    other: Any = METHODS.get(method)
    if method == "GCN":
        other = GCNConfig(hidden=(64, 64, 64), dropout=0.0)
    return Training(_with(recipe, other), 0.4, probe=Tested())


@functools.cache
def _load(name: str) -> Any:
    """A recipe as it is shipped: there are too many points to read it for each."""
    return recipes.load(name)


def _with(recipe: Any, other: Any) -> Any:
    """A recipe with another network or another adjoint."""
    if isinstance(other, ModelConfig):
        return counterpart.with_model(recipe, other, type(other).__name__)
    return recipe if other is None else replace(recipe, adjoint=other)


@identified_as("_graphs.chosen")
def choose(context: Context) -> dict[str, Any]:
    """`chosen`: the test accuracy after the epoch with the lowest validation loss, since accuracies
    on 42 graphs tie; `at`: that epoch."""
    best = min(context.run.metrics, key=lambda record: record["valid"]["loss"])
    return {"chosen": best["probe"]["test"], "at": best["epoch"]}


def protocols(data: Data) -> Iterable[Sequence[Any]]:
    """A row for each method: folds; the accuracy chosen by validation, mean and deviation; what it
    gains on the exact gradient, paired by folds, mean and standard error; and the accuracy of the
    epoch whose mean over the folds is the best on the test folds themselves."""
    points = data.points[data.points["what"] == "cox2"]
    exact = points[points["network"] == "exact"].set_index("fold")
    for method, group in points.groupby("network", sort=False):
        if "chosen" not in group or not group["chosen"].notna().any():
            yield [method, "not run"]
            continue
        found = 100 * group["chosen"].dropna()
        epochs = data.series("epoch", what="cox2", network=method)
        means = 100 * epochs.groupby("epoch")["probe_test"].agg(["mean", "std"])
        best = means.loc[means["mean"].idxmax()]
        yield [
            method,
            len(found),
            int(group["parameters"].dropna().iloc[0]),
            f"{found.mean():.1f} ± {found.std():.1f}",
            _gain(group.set_index("fold"), exact) if method != "exact" else None,
            f"{best['mean']:.1f} ± {best['std']:.1f}",
        ]


def _gain(one: Frame, other: Frame) -> str | None:
    """Mean and standard error, in points, over the folds that both have been run on."""
    if "chosen" not in other:
        return None
    gains = 100 * (one["chosen"] - other["chosen"]).dropna()
    if len(gains) < 2:
        return None
    return f"{gains.mean():+.1f} ± {gains.std() / len(gains) ** 0.5:.1f}"
