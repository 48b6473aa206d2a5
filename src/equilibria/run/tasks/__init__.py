"""Tasks: a task is data, a model to fit to them, a loss, and metrics."""

from equilibria.metric import ACCURACY, LOSS, Metric, Sums, mean
from equilibria.run import registry
from equilibria.run.tasks.base import SampleTask, Task, TaskConfig
from equilibria.run.tasks.feed import Batch, Feed, Part


def register(name: str, config: type[TaskConfig]) -> None:
    """Let recipes name a task: `task: {name: ...}`.

    Args:
        name: in recipes.
        config: a frozen dataclass of what a recipe writes under `task`.

    Raises:
        ValueError: the name is taken.
    """
    if registry.find("tasks").setdefault(name, config) is not config:
        raise ValueError(f"there is a task '{name}' already")


__all__ = [
    "ACCURACY",
    "LOSS",
    "Batch",
    "Feed",
    "Metric",
    "Part",
    "SampleTask",
    "Sums",
    "Task",
    "TaskConfig",
    "mean",
    "register",
]
