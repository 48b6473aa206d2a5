"""What tasks of several applications ask of a recipe: data, sizes, a model that fits the data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from equilibria import files
from equilibria.run.data import storage
from equilibria.run.data.storage import DataError, read_errors, write_errors
from equilibria.run.models import ClassifierConfig, ModelConfig

# --- recipe ---------------------------------------------------------------------------------------


def require_data(data: str | None, samples: str, how: str) -> str:
    """Return the data that a recipe names.

    Args:
        data: as the recipe has them.
        samples: what there is to learn from: "there are no images".
        how: how to name some: "name a folder with --data FOLDER".

    Raises:
        ValueError: it names none.
    """
    if data is None:
        raise ValueError(f"{samples} to learn from: {how}")
    return data


def check_channels(channels: int | None) -> None:
    """Raise ValueError unless images are to be grey, RGB, or left as they are."""
    if channels not in (None, 1, 3):
        raise ValueError(f"channels must be 1, 3 or null; got {channels}")


def check_sizes(*words: str, **sizes: Any) -> None:
    """Raise ValueError for the first that is neither a height and a width, nor a word or None."""
    for name, pair in sizes.items():
        if pair is None or pair in words:
            continue
        if isinstance(pair, str) or len(pair) != 2 or min(pair) < 1:
            got = pair if isinstance(pair, str) else list(pair)
            raise ValueError(f"{name} must be a height and a width, or null; got {got}")


def check_range(what: str, **ranges: tuple[float, ...]) -> None:
    """Raise ValueError for the first that is not the smallest and the largest of something."""
    for name, pair in ranges.items():
        if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
            raise ValueError(
                f"{name} must be the smallest and the largest {what}, both positive; got "
                f"{list(pair)}"
            )


def spread_places(key: str, count: int, total: int, what: str, split: str) -> Tensor:
    """Return the places of some samples, spread evenly over all.

    Args:
        key: of the recipe that asks for them.
        count: number of samples.
        total: number of all that there are.
        what: samples, in the plural.
        split: which has them, for the message.

    Raises:
        ValueError: there are not so many.
    """
    if count > total:
        raise ValueError(f"{key} is {count}, and the {split} split has {total} {what}: lower it")
    return torch.arange(count) * total // count


# --- run folder -----------------------------------------------------------------------------------

# What a run folder keeps of the data, as JSON.


@contextmanager
def read_facts(path: Path, shape: Any) -> Iterator[Any]:
    """Give what `write_facts` has written to a block that makes something of it.

    Raises:
        DataError: the file is missing or damaged, or the block raises a ValueError for it.
    """
    try:
        with read_errors(path):
            content = storage.read(path, shape)
        yield content
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}): restore it from a copy") from error


def write_facts(path: Path, content: Any) -> None:
    """Write what is known of the data as indented JSON.

    Raises:
        DataError: it cannot be written; what was there before is unchanged.
    """
    with write_errors(path, "--out"):
        files.write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


# --- completion -----------------------------------------------------------------------------------

# Configs of models, completed by what the data say.


class Predicts(Protocol):
    """What a model of sequences has beside its forward."""

    def losses(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return (batch, time): -ln p of each target, 0 of those below 0."""
        ...

    def log_probs(self, output: Tensor) -> Tensor:
        """Return (batch, time, vocabulary): ln p of every token."""
        ...


def complete_config(config: Any, facts: Mapping[str, Any], source: str, counted: str = "") -> Any:
    """Return the config of a model with what the data say filled in.

    Args:
        config: what the recipe says.
        facts: values of its fields.
        source: what the data are called.
        counted: what the values are numbers of: " tokens".

    Raises:
        ValueError: the recipe says something else than the data.
    """
    wrong = list[str]()
    for name, value in facts.items():
        given = getattr(config, name)
        given = tuple(given) if isinstance(given, list) else given
        if given is not None and given != value:
            wrong.append(f"model.{name} is {given}, and {source} has {value}{counted}")
    if wrong:
        raise ValueError(f"{'; '.join(wrong)}: leave it out or set it to that")
    return replace(config, **facts)


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
    facts = {"shape": shape, "classes": classes, "vocabulary": vocabulary}
    return complete_config(config, facts, source)


def complete_vocabulary(config: ModelConfig, size: int, source: str) -> ModelConfig:
    """Return the config of a sequence model for a vocabulary of `size` tokens.

    Raises:
        ValueError: it is of no sequence model, or of one for another vocabulary.
    """
    if isinstance(config, ClassifierConfig) or not hasattr(config, "vocabulary"):
        raise ValueError(f"{type(config).__name__} describes no model of sequences of tokens")
    return complete_config(config, {"vocabulary": size}, source, " tokens")
