"""What all tasks on tokens share: the vocabulary of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, cast

from torch import Tensor

from equilibria.run.models import ClassifierConfig, ModelConfig


class Predicts(Protocol):
    """What a model of sequences has beside its forward."""

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return (batch, time): -ln p of each target, 0 of those below 0."""
        ...

    def log_probs(self, output: Tensor) -> Tensor:
        """Return (batch, time, vocabulary): ln p of every token."""
        ...


def with_vocabulary(config: ModelConfig, size: int, name: str) -> ModelConfig:
    """Return the config of a sequence model for a vocabulary of `size` tokens.

    Raises:
        ValueError: it is of no sequence model, or of one for another vocabulary.
    """
    if isinstance(config, ClassifierConfig) or not hasattr(config, "vocabulary"):
        raise ValueError(f"{type(config).__name__} describes no model of sequences of tokens")
    given = cast(Any, config).vocabulary
    if given is None:
        return replace(cast(Any, config), vocabulary=size)
    if given != size:
        raise ValueError(
            f"{name} has {size} tokens and model.vocabulary is {given}: leave it out or set it to "
            f"{size}"
        )
    return config
