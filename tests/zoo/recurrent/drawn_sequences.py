"""Sequences that are drawn, as a task, and recurrent models for them."""

import torch

from equilibria.run.registry import find, resolve
from equilibria.zoo.io.sequences import Sequences
from equilibria.zoo.recurrent.model.classifier import RecurrentConfig, SequenceClassifier
from equilibria.zoo.recurrent.task.signals import ChannelStatistics, Standardized
from tasks_in_memory import Drawn

CELLS = {
    name: resolve(place)
    for name, (base, place) in find("classes").items()
    if base.endswith(":CellOptions")
}
"""The options of each cell, by the name that a recipe gives it."""


def sequences(
    count: int = 12, time: int = 9, *, lengths: bool = False, compress: float | None = None
) -> Drawn:
    """Sequences far from mean 0 and deviation 1, which the task brings there."""
    draw = torch.Generator().manual_seed(1)
    x = 5 + 3 * torch.randn(count, time, 3, generator=draw)
    own = torch.randint(1, time + 1, (count,), generator=draw) if lengths else None
    found = Sequences(x, torch.arange(count) % 2, own)
    statistics = ChannelStatistics.of(found, compress)
    return Drawn(dict.fromkeys(("train", "test"), Standardized(found, statistics)), "sha256:0")


def recurrent(name: str = "ERNN", *, layer=None, cell=None, **options) -> SequenceClassifier:
    """A recurrent model whose weights are drawn."""
    torch.manual_seed(0)
    config = RecurrentConfig(
        **{"shape": (3,), "classes": 2, "hidden": 8, **options}, cell=CELLS[name](**(cell or {}))
    )
    model = config.build(**(layer or {})).eval()
    with torch.no_grad():  # away from the steps of almost 0 that training begins with
        for key, each in model.named_parameters():
            if key.endswith("step_sizes"):
                each.fill_(0.3)
    return model
