"""Sequences that are classified as a whole, in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from equilibria.run.data.dataset import Samples
from equilibria.zoo.io.remote import Files


class SequenceSamples(Samples, Protocol):
    """Sequences in memory, or made when a batch is asked for.

    Inputs of a batch are a tensor, or a tuple of it and the lengths where there are `lengths`.
    """

    @property
    def lengths(self) -> Tensor | None:
        """Steps of each sequence, ``(count,)``; None if all have the same number."""
        ...

    @property
    def groups(self) -> Tensor | None:
        """Who or what each sequence was recorded from, ``(count,)``; None if that is unknown."""
        ...


@dataclass(frozen=True)
class Sequences:
    """Sequences in an order that never changes, padded at their ends to the length of the longest.

    Attributes:
        inputs: Signals ``(count, time, channels)``, float32, or float64 where float32 would round
            away what a channel has to say; or tokens ``(count, time)``, int64;
            zero after the end of a sequence.
        targets: One per sequence: classes ``(count,)``, int64, or numbers ``(count, 1)``, float32.
        lengths: Steps of each sequence, ``(count,)``, int64; None if all fill `inputs`.
        groups: Who or what each sequence was recorded from, ``(count,)``, int64, to be kept on one
            side of a split; None if that is unknown.

    Raises:
        ValueError: If their numbers differ, there is no sequence, or a length does not fit.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None = None
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        count = len(self.inputs)
        for name in ("targets", "lengths", "groups"):
            each = getattr(self, name)
            if each is not None and len(each) != count:
                raise ValueError(f"{count} sequences and {len(each)} {name}: expected one of each")
        if count == 0:
            raise ValueError("there is no sequence: expected at least one")
        if self.lengths is not None:
            low, high = int(self.lengths.min()), int(self.lengths.max())
            if low < 1 or high > self.inputs.shape[1]:
                raise ValueError(
                    f"lengths are {low} to {high}: expected 1 to {self.inputs.shape[1]} steps"
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: slice | Tensor) -> tuple[Any, Tensor]:
        """Inputs and targets of the sequences that a slice or a tensor of positions names.

        Inputs are a tensor, or a tuple of it and the lengths where these differ.
        """
        inputs, targets = self.inputs[index], self.targets[index]
        return inputs if self.lengths is None else (inputs, self.lengths[index]), targets

    def select(self, index: Tensor) -> Sequences:
        """The sequences at some positions, in that order."""
        kept = (None if x is None else x[index] for x in (self.lengths, self.groups))
        return Sequences(self.inputs[index], self.targets[index], *kept)


@dataclass(frozen=True, kw_only=True)
class SequenceSet:
    """A data set of sequences, each with a class.

    Attributes:
        name: The name by which `load` knows it; of the user's own, where it lies.
        title: What tables call it.
        train: Training sequences.
        test: Test sequences.
        valid: Validation sequences; None if the source names none.
        labels: What each class is called, in the order of their numbers.
        channels: What each channel is called; empty for tokens.
        vocabulary: Number of tokens; None for signals.
        source: Where they came from.
        checksum: ``sha256:...`` over all of them, to tell two runs on the same data from two runs
            on different data.
        form: How the texts were read of which it was made; empty where there were none.
    """

    name: str
    title: str
    train: SequenceSamples
    test: SequenceSamples
    valid: SequenceSamples | None = None
    labels: tuple[str, ...]
    channels: tuple[str, ...] = ()
    vocabulary: int | None = None
    source: str
    checksum: str
    form: str = ""

    @classmethod
    def of(cls, files: Files, splits: Mapping[str, Sequences], **names: Any) -> SequenceSet:
        """What was read from some files: "train", "test" and perhaps "valid".

        Args:
            files: What they were read from.
            splits: Sequences by the name of the split.
            names: `labels`, and `channels` or `vocabulary`.
        """
        return cls(**files.describe(splits), checksum=digest(*splits.values()), **names)


def digest(*splits: Sequences) -> str:
    """``sha256:...`` over all that is in some splits, in order."""
    total = hashlib.sha256()
    for split in splits:
        for tensor in (split.inputs, split.targets, split.lengths, split.groups):
            if tensor is not None:
                total.update(str((tuple(tensor.shape), tensor.dtype)).encode())
                total.update(tensor.contiguous().numpy().data.cast("B"))
    return f"sha256:{total.hexdigest()}"


def pad_sequences(sequences: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Sequences ``(time, ...)`` of any lengths side by side, and their lengths if they differ."""
    lengths = torch.tensor([len(each) for each in sequences])
    inputs = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    return inputs, None if bool((lengths == lengths[0]).all()) else lengths
