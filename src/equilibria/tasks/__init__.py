"""Tasks: a task is data, a model to fit to them, a loss and figures that judge it."""

from equilibria.tasks.base import Task, TaskConfig
from equilibria.tasks.classification import ImageClassification
from equilibria.tasks.copying import CopyMemory
from equilibria.tasks.feed import Batch, Feed, Part
from equilibria.tasks.language import LanguageModelling

TASKS: dict[str, type[TaskConfig]] = {
    "image_classification": ImageClassification,
    "language_modelling": LanguageModelling,
    "copy_memory": CopyMemory,
}

__all__ = [
    "TASKS",
    "Batch",
    "CopyMemory",
    "Feed",
    "ImageClassification",
    "LanguageModelling",
    "Part",
    "Task",
    "TaskConfig",
]
