"""Classification of whole graphs, such as molecules, in folds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.data import load
from equilibria.run.tasks.base import LabeledTask, TaskConfig, check_split
from equilibria.zoo.graph.data import GraphSet
from equilibria.zoo.graph.data.graph import Joined
from equilibria.zoo.graph.task.graphs import Known, OnGraphs
from equilibria.zoo.io import selection
from equilibria.zoo.io.tasks import require_data


@dataclass(frozen=True, kw_only=True)
class GraphClassification(TaskConfig):
    """To which of several classes does a graph belong? Trained with cross-entropy, tested on one
    fold.

    Folds are stratified by class. Validation graphs, by which a model is selected, are taken from
    the training folds, never from the test fold.

    Args:
        data: name of a data set (cox2, mutag, proteins), or path of a folder of texts or of an
            .npz file; also `--data FOLDER` or `--data FILE.npz`. Null in a recipe that leaves it
            to that.
        attributes: use the nodes' attributes, real numbers, as features beside their labels; null
            for those in a folder of your own, and for none of a named set.
        folds: number of folds.
        fold: the test fold, counted from 0.
        valid: share of the other folds that is held out and evaluated after each epoch in place of
            the test graphs; null for none.
        data_seed: of the folds.
    """

    data: str | None = "cox2"
    attributes: bool | None = None
    folds: int = 10
    fold: int = 0
    valid: float | None = 0.1
    data_seed: int = 0

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}")
        if not 0 <= self.fold < self.folds:
            raise ValueError(
                f"fold is {self.fold}: there are {self.folds} folds, counted from 0 to "
                f"{self.folds - 1}"
            )
        check_fields(self, "(0, 1)", "valid")

    @override
    def load(self, data_dir: Path | None = None) -> GraphTask:
        return GraphTask(self, self._read(data_dir))

    @override
    def load_other(self, run: Path, data_dir: Path | None = None) -> GraphTask:
        """Read other graphs, which are all test graphs.

        Raises:
            DataError: they have other features or classes than the run's.
        """
        return GraphTask(self, self._read(data_dir), Known.read(run))

    def _read(self, data_dir: Path | None) -> GraphSet:
        how = "name a folder or file with --data FOLDER or --data FILE.npz"
        data = require_data(self.data, "there are no graphs", how)
        options = {} if self.attributes is None else {"attributes": self.attributes}
        return load(data, data_dir, kind=GraphSet, **options)


class GraphTask(OnGraphs, LabeledTask):
    """Graphs with a class each.

    Args:
        config: what the recipe says.
        found: the data set.
        run: of a run that is evaluated on these data; None for its own.

    Raises:
        ValueError: there are not enough graphs for these folds.
        DataError: a run has learned from other features or classes.
    """

    unit = "graphs"
    baseline = "majority class"

    def __init__(
        self, config: GraphClassification, found: GraphSet, run: Known | None = None
    ) -> None:
        self.config, self.source = config, found.title
        self.known = Known(
            level="graph", source=found.title, labels=found.labels, features=found.features
        )
        if run is not None:
            run.check(self.known)
            self.known = run
            parts = {"test": found.graphs}
            self.baseline = ""  # nothing of these was learned from
        else:
            parts = {name: found.select(places) for name, places in _places(config, found).items()}
        super().__init__({name: Joined(each, name) for name, each in parts.items()}, found.checksum)

    @override
    def reference(self, split: str) -> dict[str, float]:
        """Return the accuracy of always predicting the most frequent class in training."""
        learned, asked = (self.samples[name][:][1] for name in ("train", check_split(self, split)))
        return {"accuracy": float((asked == learned.bincount().argmax()).double().mean())}


def _places(config: GraphClassification, found: GraphSet) -> dict[str, torch.Tensor]:
    """Where the graphs of each part are: "train", "test" and perhaps "valid"."""
    targets = found.targets
    fold = selection.assign_folds(targets, found.labels, config.folds, config.data_seed)
    places = {"test": torch.nonzero(fold == config.fold)[:, 0]}
    rest = torch.nonzero(fold != config.fold)[:, 0]
    count = None if config.valid is None else max(1, round(config.valid * len(rest)))
    learned, aside = selection.stratify(targets[rest], found.labels, count, None)
    places["train"] = rest[learned]
    if aside is not None:
        places["valid"] = rest[aside]
    return {name: places[name] for name in ("train", "valid", "test") if name in places}
