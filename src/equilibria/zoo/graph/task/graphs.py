"""What tasks on graphs share: the model's config, and what a run folder keeps of the data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from typing_extensions import override

from equilibria.run.data.storage import DataError
from equilibria.run.models import ClassifierConfig, ModelConfig
from equilibria.run.tasks.base import SampleTask
from equilibria.words import list_some, plural
from equilibria.zoo.io.tasks import complete_config, read_facts, write_facts

GRAPHS = "graphs.json"
"""The file of a run folder with the names of the classes and the number of features."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a run folder keeps of the graphs that were learned from.

    Args:
        level: what has classes: "node" or "graph".
        source: what the data are called.
        labels: what the classes are called.
        features: of a node.
        multilabel: whether a node can have several.
    """

    level: str
    source: str
    labels: tuple[str, ...]
    features: int
    multilabel: bool = False

    def save(self, folder: Path) -> None:
        """Write graphs.json into a run folder."""
        write_facts(folder / GRAPHS, vars(self))

    @classmethod
    def read(cls, run: Path) -> Known:
        """Read what `save` has written.

        Raises:
            DataError: it is missing or damaged.
        """
        with read_facts(run / GRAPHS, cls) as content:
            known = {each.name: content[each.name] for each in fields(cls) if each.name in content}
            return cls(**{**known, "labels": tuple(known["labels"])})

    def check(self, other: Known) -> None:
        """Raise DataError unless a model that has learned from these can be judged on others.

        Classes that are only numbered may be fewer.
        """
        if other.features != self.features:
            raise DataError(
                f"{other.source} has nodes with {plural(other.features, 'feature')}, and the run's "
                f"data with {self.features}: they must be the same, in the same order"
            )
        count = len(other.labels)
        numbered = other.labels == tuple(map(str, range(count)))
        fits = other.labels == self.labels[:count] or (numbered and count <= len(self.labels))
        same = other.multilabel == self.multilabel and (count == len(self.labels) or numbered)
        if not (fits and same) or (self.multilabel and count != len(self.labels)):
            raise DataError(
                f"{other.source} has the classes {list_some(other.labels, 8)}, and the run's data "
                f"have {list_some(self.labels, 8)}: they must be the same, in this order"
            )


class OnGraphs(SampleTask):
    """Samples that are graphs, whose numbers of nodes and edges differ.

    Attributes:
        known: what a run folder keeps of them.
    """

    known: Known

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        if not (isinstance(config, ClassifierConfig) and hasattr(config, "level")):
            raise ValueError(f"{type(config).__name__} describes no network for graphs")
        known = self.known
        facts = {"shape": (known.features,), "classes": len(known.labels), "level": known.level}
        return complete_config(config, facts, known.source)

    @override
    def save(self, folder: Path) -> None:
        """Write graphs.json: names of the classes, and the number of features."""
        self.known.save(folder)

    @override
    def refuses_export(self) -> str:
        return (
            f"{self.source} has graphs, whose numbers of nodes and edges differ, and a file takes "
            "inputs of one shape: use the model in PyTorch"
        )

    @override
    def limit(self, count: int) -> int:
        return min(count, len(self.samples["train"]))  # of citation networks there is one
