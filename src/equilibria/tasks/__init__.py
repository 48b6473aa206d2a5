"""Tasks: a task is data, a model to fit to them, a loss and a metric."""

from equilibria.tasks.base import Task, TaskConfig
from equilibria.tasks.classification import ImageClassification

TASKS: dict[str, type[TaskConfig]] = {"image_classification": ImageClassification}

__all__ = ["TASKS", "ImageClassification", "Task", "TaskConfig"]
