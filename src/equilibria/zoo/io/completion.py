"""Configs of classifiers of sequences, completed by what the data say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from equilibria.run.models import ClassifierConfig, ModelConfig

__all__ = ["complete_classifier"]


def complete_classifier(
    config: ModelConfig, shape: tuple[int, ...], classes: int, vocabulary: int | None, source: str
) -> ModelConfig:
    """Return the config of a classifier of sequences with what the data say filled in.

    Args:
        config: what the recipe says.
        shape: (channels,) of signals, () of tokens.
        classes: outputs.
        vocabulary: number of tokens; None for signals.
        source: what the data are called.

    Raises:
        ValueError: it is of no such model, or of one for other data.
    """
    if not (isinstance(config, ClassifierConfig) and hasattr(config, "vocabulary")):
        raise ValueError(f"{type(config).__name__} describes no classifier of sequences")
    facts: dict[str, Any] = {"shape": shape, "classes": classes, "vocabulary": vocabulary}
    for name, value in facts.items():
        given = getattr(config, name)
        given = tuple(given) if isinstance(given, list) else given
        if given is not None and given != value:
            raise ValueError(
                f"model.{name} is {given}, and {source} has {value}: leave it out or set it to that"
            )
    return replace(config, **facts)
