"""What a data set is once it has been read: plain tensors and where they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class Samples(Protocol):
    """Samples and their targets, in memory or read on demand."""

    @property
    def targets(self) -> Tensor:
        """One target per sample, ``(count, ...)``."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | Tensor, /) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the samples that a slice or a tensor of positions names."""
        ...

    def select(self, index: Tensor) -> Self:
        """The samples at some positions, in that order."""
        ...


@dataclass(frozen=True)
class Split:
    """Samples and their targets, in an order that never changes.

    Attributes:
        inputs: Samples, ``(count, ...)``; pixels of images may be uint8 to save memory.
        targets: One target per sample, ``(count, ...)``.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.targets) == 0:
            raise ValueError(
                f"{len(self.inputs)} samples and {len(self.targets)} targets: "
                "expected one target per sample, and at least one sample"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the samples that a slice or a tensor of positions names.

        Inputs of uint8 are pixels, and are given as float32 in [0, 1].
        """
        inputs = self.inputs[index]
        return inputs / 255 if inputs.dtype == torch.uint8 else inputs, self.targets[index]

    def select(self, index: Tensor) -> Split:
        """The samples at some positions, in that order."""
        return Split(self.inputs[index], self.targets[index])

    def batches(self, size: int, *, seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all samples once, `size` at a time; the last batch may be smaller.

        Args:
            size: Samples in a batch.
            seed: Fixes the order; the same seed is the same order on every machine. None keeps
                the order of the split.

        Yields:
            Inputs and targets of a batch.

        Raises:
            ValueError: If `size` is below one.
        """
        if size < 1:
            raise ValueError(f"a batch of {size} samples: give a size of at least 1")
        if seed is None:
            order = torch.arange(len(self))
        else:
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        for index in order.split(size):
            yield self[index]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set for classification.

    Attributes:
        name: The name by which `load` knows it.
        title: What tables call it.
        train: Training samples.
        test: Test samples.
        valid: Validation samples; None if the source names none.
        classes: Number of classes; targets are 0 to ``classes - 1``.
        labels: What each class is called.
        shape: Shape of one sample, ``(channels, height, width)`` for images.
        source: Where the samples came from.
        checksum: ``sha256:...`` over all samples and targets, to tell two runs on the same data
            from two runs on different data.
    """

    name: str
    title: str
    train: Split
    test: Split
    valid: Split | None = None
    classes: int
    labels: tuple[str, ...]
    shape: tuple[int, ...]
    source: str
    checksum: str

    @classmethod
    def of(cls, files: Any, splits: Mapping[str, Split], labels: tuple[str, ...]) -> Dataset:
        """What was read from the `Files` of an entry: "train", "test" and perhaps "valid"."""
        return cls(
            **files.describe(splits),
            classes=len(labels),
            labels=labels,
            shape=tuple(splits["train"].inputs.shape[1:]),
            checksum=digest(*splits.values()),
        )


@dataclass(frozen=True)
class UserData:
    """What reads a user's own data.

    Attributes:
        read: Makes a data set from the path of a folder, and options.
        expected: What it expects there, for messages.
        arrays: Whether it reads a .npz file, too.
    """

    read: Callable[..., Any]
    expected: str
    arrays: bool = False


def digest(*splits: Split) -> str:
    """``sha256:...`` over the samples and targets of some splits, in order."""
    total = hashlib.sha256()
    for split in splits:
        for tensor in (split.inputs, split.targets):
            total.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            total.update(tensor.contiguous().numpy().data.cast("B"))
    return f"sha256:{total.hexdigest()}"
