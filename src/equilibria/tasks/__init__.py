"""Tasks: a task is data, a model to fit to them, a loss, and metrics."""

from equilibria.metric import ACCURACY, LOSS, Metric, Sums, mean
from equilibria.tasks.base import SampleTask, Task, TaskConfig
from equilibria.tasks.classification import ImageClassification
from equilibria.tasks.copying import CopyMemory
from equilibria.tasks.feed import Batch, Feed, Part
from equilibria.tasks.flow import OpticalFlow
from equilibria.tasks.language import LanguageModelling
from equilibria.tasks.nodes import Chains, NodeClassification
from equilibria.tasks.own_images import OwnImages
from equilibria.tasks.representation import SignalRepresentation
from equilibria.tasks.segmentation import ImageSegmentation
from equilibria.tasks.sequences import SequenceClassification
from equilibria.tasks.synthetic import AddingProblem, OrderProblem
from equilibria.tasks.whole_graphs import GraphClassification

TASKS: dict[str, type[TaskConfig]] = {
    "image_classification": ImageClassification,
    "image_segmentation": ImageSegmentation,
    "own_images": OwnImages,
    "language_modelling": LanguageModelling,
    "copy_memory": CopyMemory,
    "sequence_classification": SequenceClassification,
    "adding": AddingProblem,
    "order": OrderProblem,
    "node_classification": NodeClassification,
    "graph_classification": GraphClassification,
    "chains": Chains,
    "optical_flow": OpticalFlow,
    "signal": SignalRepresentation,
}
"""The config of each task, by the name that a recipe gives it."""


def register(name: str, config: type[TaskConfig]) -> None:
    """Let recipes name a task: `task: {name: ...}`.

    Args:
        name: in recipes.
        config: a frozen dataclass of what a recipe writes under `task`.

    Raises:
        ValueError: the name is taken.
    """
    if TASKS.setdefault(name, config) is not config:
        raise ValueError(f"there is a task '{name}' already")


__all__ = [
    "ACCURACY",
    "LOSS",
    "TASKS",
    "AddingProblem",
    "Batch",
    "Chains",
    "CopyMemory",
    "Feed",
    "GraphClassification",
    "ImageClassification",
    "ImageSegmentation",
    "LanguageModelling",
    "Metric",
    "NodeClassification",
    "OpticalFlow",
    "OrderProblem",
    "OwnImages",
    "Part",
    "SampleTask",
    "SequenceClassification",
    "SignalRepresentation",
    "Sums",
    "Task",
    "TaskConfig",
    "mean",
    "register",
]
