"""Classification of the nodes of a graph, of which some are asked for and all are seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.metric import ACCURACY, Metric, Sums
from equilibria.run.data import available, load
from equilibria.run.models import Model
from equilibria.run.tasks.base import TaskConfig, right
from equilibria.zoo.graph import data as graphs
from equilibria.zoo.graph.data import Graph, NodeSet
from equilibria.zoo.graph.data.graph import Joined
from equilibria.zoo.graph.data.synthetic import FEATURES
from equilibria.zoo.graph.task.graphs import Known, OnGraphs
from equilibria.zoo.io.tasks import require_data


def _micro_f1(sums: Sums) -> float:
    wrong = sums["missed"] + sums["false"]
    total = float(2 * sums["found"] + wrong)
    return float(2 * sums["found"]) / total if total else math.nan


MICRO_F1 = Metric(
    name="micro_f1",
    figure=_micro_f1,
    label="micro-F1",
    description="F1 over all nodes and labels together: twice the true positives, divided by twice "
    "the true positives plus the false positives and the false negatives.",
    higher_is_better=True,
    scale=100.0,
    spec=".2f",
    unit=" %",
)
"""Of several labels a node: 2 TP / (2 TP + FP + FN), of the sums `found`, `false` and `missed`."""


@dataclass(frozen=True, kw_only=True)
class NodeClassification(TaskConfig):
    """To which class does each node of a graph belong, or which labels does it have?

    Trained with cross-entropy, or where a node can have several labels with the mean over labels
    of the binary cross-entropy. A batch is whole graphs: the one of citation networks in each step.

    Args:
        data: name of a data set (cora, citeseer, pubmed, ppi), or path of an .npz file with one
            graph; also `--data FILE.npz`. Null in a recipe that leaves it to that.
        normalize: scale the features of each node so that they add up to 1; null for where no
            feature is below zero.
        split: seed of a random split with as many training nodes of each class, and as many
            validation and test nodes, as the given one; null for the given one.
    """

    data: str | None = "cora"
    normalize: bool | None = None
    split: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "[0, inf)", "split")

    @override
    def load(self, data_dir: Path | None = None) -> NodeTask:
        how = "name a file with --data FILE.npz, with the arrays x, edge_index and y"
        data = require_data(self.data, "there is no graph", how)
        return NodeTask(load(data, data_dir, kind=NodeSet), self.normalize, self.split)

    @override
    def load_other(self, run: Path, data_dir: Path | None = None) -> NodeTask:
        """Read another graph; all nodes of a file without masks are test nodes.

        Raises:
            DataError: it has other features or classes than the run's.
        """
        assert self.data is not None  # nobody names data to evaluate on without a name
        whole = {} if self.data in available(NodeSet) else {"whole": True}
        found = load(self.data, data_dir, kind=NodeSet, **whole)
        return NodeTask(found, self.normalize, known=Known.read(run))


@dataclass(frozen=True, kw_only=True)
class Chains(TaskConfig):
    """To which class does each node of a chain belong, if only its first node's features tell?

    papers: Gu et al. 2020 (IGNN), sec. 5; Liu et al. 2021 (EIGNN), sec. 5.2.

    Args:
        length: nodes of a chain.
        classes: number of classes.
        chains: chains of each class.
        directed: whether messages go along a chain only, away from its first node.
        features: of a node, of which one for each class is used.
        noise: uniform numbers in [-noise, noise) are added to all features.
        data_seed: of the split into 5 % training, 10 % validation and 85 % test nodes.
    """

    length: int = 50
    classes: int = 2
    chains: int = 20
    directed: bool = True
    features: int = FEATURES
    noise: float = 0.0
    data_seed: int = 0

    def __post_init__(self) -> None:
        graphs.chains(**self._options)  # it says what is impossible

    @property
    def _options(self) -> dict[str, Any]:
        """What the chains are drawn with."""
        options = {**vars(self), "seed": self.data_seed}
        del options["data_seed"]
        return options

    @override
    def load(self, data_dir: Path | None = None) -> NodeTask:
        return NodeTask(load("chains", data_dir, **self._options))


class NodeTask(OnGraphs):
    """Graphs with a target for each of their nodes, -1 where nothing is asked.

    Args:
        found: the data set.
        normalize: scale the features of each node so that they add up to 1; None for where no
            feature is below zero.
        split: seed of a random split; None for the given one.
        known: of a run that is evaluated on these data; None for its own.

    Raises:
        ValueError: features are negative and cannot be normalised, or there is nothing to divide.
        DataError: a run has learned from other features or classes.
    """

    unit = "nodes"

    def __init__(
        self,
        found: NodeSet,
        normalize: bool | None = False,
        split: int | None = None,
        known: Known | None = None,
    ) -> None:
        self.source = found.title
        parts = {"train": found.train, "valid": found.valid, "test": found.test}
        parts = {name: part for name, part in parts.items() if part}
        self.known = Known(
            level="node",
            source=found.title,
            labels=found.labels,
            features=next(iter(parts.values()))[0].x.shape[1],
            multilabel=found.multilabel,
        )
        if known is not None:
            known.check(self.known)
            self.known = known
        if split is not None:
            parts = dict.fromkeys(parts, (_divide(found, split),))
        if normalize is None:
            normalize = not any(bool((g.x < 0).any()) for part in parts.values() for g in part)
        self.normalize = normalize
        if normalize:
            parts = _normalize(parts, found.title)
        super().__init__({name: Joined(each, name) for name, each in parts.items()}, found.checksum)
        self.multilabel = found.multilabel
        self.metrics = (MICRO_F1,) if found.multilabel else (ACCURACY,)

    @override
    def settle(self, config: TaskConfig) -> TaskConfig:
        """Return the config with whether features are normalised, as other data will be."""
        own = isinstance(config, NodeClassification)
        return replace(config, normalize=self.normalize) if own else config

    @override
    def units(self, targets: Tensor) -> int:
        return int(_has_target(targets).sum())

    @override
    def loss(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        if self.multilabel:
            asked = _has_target(targets)
            output, targets = output[asked], targets[asked].to(output.dtype)
            losses = functional.binary_cross_entropy_with_logits(output, targets, reduction="none")
            return losses.mean(1).sum()
        return functional.cross_entropy(output, targets, ignore_index=graphs.NONE, reduction="sum")

    @override
    def sums(self, model: Model, output: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        asked = _has_target(targets)
        if not self.multilabel:
            return right(output[asked].argmax(1) == targets[asked])
        given, there = output[asked] > 0, targets[asked] > 0
        return {
            "found": (given & there).sum(),
            "false": (given & ~there).sum(),
            "missed": (~given & there).sum(),
        }


def _has_target(targets: Tensor) -> Tensor:
    """Whether something is asked of each node, (nodes,), bool."""
    return (targets if targets.ndim == 1 else targets[:, 0]) >= 0


def _normalize(parts: Mapping[str, tuple[Graph, ...]], source: str) -> dict[str, tuple[Graph, ...]]:
    """The parts with normalised features; what is the same graph in several stays the same."""
    made: dict[int, Graph] = {}
    for graph in (graph for part in parts.values() for graph in part):
        if id(graph) not in made:
            try:
                made[id(graph)] = graphs.normalize_features(graph)
            except ValueError as error:
                raise ValueError(f"{source}: {error}; set task.normalize to null") from None
    return {name: tuple(made[id(graph)] for graph in part) for name, part in parts.items()}


def _divide(found: NodeSet, seed: int) -> Graph:
    """The graph of a set with its nodes divided at random.

    Raises:
        ValueError: it is not one graph with masks and one class a node.
    """
    graph = found.graph if found.train and found.train[0].masks else None
    if graph is None or graph.masks is None or graph.y is None or graph.y.ndim != 1:
        raise ValueError(
            f"split is {seed}, and {found.title} is not one graph whose nodes have one class each: "
            "set task.split to null"
        )
    y, generator = graph.y, torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)
    order = order[y[order] >= 0]
    masks = {name: torch.zeros_like(mask) for name, mask in graph.masks.items()}
    for kind, count in enumerate(y[graph.masks["train"]].bincount().tolist()):
        masks["train"][order[y[order] == kind][:count]] = True
    order = order[~masks["train"][order]]
    for name in masks:
        if name != "train":
            count = int(graph.masks[name].sum())
            masks[name][order[:count]], order = True, order[count:]
    return replace(graph, masks=masks)
