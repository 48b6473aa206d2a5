"""Images as sequences: pixel by pixel, and row by row with noise after the last row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from equilibria.run.data import registry
from equilibria.run.data.dataset import Dataset, Split
from equilibria.run.data.storage import DataError
from equilibria.zoo.io.remote import Entry, Files
from equilibria.zoo.io.sequences import Sequences, SequenceSamples, SequenceSet

# Of the permutation, which is the same in every run.
_PERMUTATION = 0

# The first key of the test split: no training set has so many images.
_TEST = 1 << 30


@dataclass(frozen=True)
class NoisyRows:
    """Images row by row, then noise from N(0, 1), made when a batch is asked for.

    Attributes:
        images: All images, and their targets.
        steps: Length of a sequence; the steps after the last row are noise.
        seed: Of the noise. A sample has the same in each epoch, each sample its own.
        keys: What, with `seed`, decides the noise of each sample, ``(count,)``, int64.
    """

    images: Split
    steps: int
    seed: int
    keys: Tensor

    lengths = None
    groups = None

    def __post_init__(self) -> None:
        if self.steps < (rows := self.images.inputs.shape[2]):
            raise ValueError(f"steps is {self.steps}: expected {rows}, one for each row, or more")

    @property
    def targets(self) -> Tensor:
        """Classes, ``(count,)``, int64."""
        return self.images.targets

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs ``(batch, steps, channels x width)``, float32, and targets of some samples.

        A step has the row of each colour, one after the other, as float32 in [0, 1].
        """
        images, targets = self.images[index]
        rows = images.transpose(1, 2).flatten(2)
        inputs = rows.new_empty(len(rows), self.steps, rows.shape[2])
        inputs[:, : rows.shape[1]] = rows
        generator = torch.Generator()
        for sample, key in zip(inputs, self.keys[index].tolist(), strict=True):
            generator.manual_seed(_mix_seed(self.seed, key))
            sample[rows.shape[1] :].normal_(generator=generator)
        return inputs, targets

    def select(self, index: Tensor) -> NoisyRows:
        """The samples at some positions, in that order, each with its own noise."""
        return replace(self, images=self.images.select(index), keys=self.keys[index])


def _mix_seed(seed: int, key: int) -> int:
    """A seed of 32 bits, which is all that torch's generator uses: another one for each key."""
    of_seed = int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:4], "big")
    return (key * 0x9E3779B1 + of_seed) % (1 << 32)  # an odd factor: no two keys meet


def pixels(files: Files, *, permuted: bool) -> SequenceSet:
    """MNIST one pixel a step, ``(count, 784, 1)``, from top left to bottom right or permuted.

    Args:
        files: Of the derived data set: where MNIST is looked for.
        permuted: Whether the pixels are in another order, the same for all images: torch's random
            permutation of 784 with seed 0. Papers do not publish theirs.
    """
    places = torch.randperm(784, generator=torch.Generator().manual_seed(_PERMUTATION))

    def sequences(images: Split, first: int) -> Sequences:
        flat = images.inputs.flatten(1)
        return Sequences((flat[:, places] if permuted else flat)[:, :, None], images.targets)

    return _derive(files, "mnist", sequences, lambda shape: ("pixel",))


def noisy(files: Files, *, steps: int = 1000, seed: int = 0) -> SequenceSet:
    """Images row by row, then noise from N(0, 1): what was seen has to be kept for long.

    Args:
        files: Of the derived data set: where the images are looked for.
        steps: Length of a sequence, rows and noise.
        seed: Of the noise.

    Raises:
        ValueError: If there are fewer steps than rows.

    Source: Chang et al. 2019.
    """

    def sequences(images: Split, first: int) -> NoisyRows:
        return NoisyRows(images, steps, seed, keys=torch.arange(first, first + len(images)))

    def channels(shape: tuple[int, ...]) -> tuple[str, ...]:
        colors = ("",) if shape[0] == 1 else ("red ", "green ", "blue ")
        return tuple(f"{each}column {column}" for each in colors for column in range(shape[2]))

    name = "cifar10" if files.entry.name == NOISY_CIFAR10.name else "mnist"
    return _derive(files, name, sequences, channels, steps, seed)


def _derive(
    files: Files,
    name: str,
    sequences: Callable[[Split, int], SequenceSamples],
    channels: Callable[[tuple[int, ...]], tuple[str, ...]],
    *options: int,
) -> SequenceSet:
    """What `sequences` makes of each split of the images of another data set.

    Args:
        files: Of the derived data set.
        name: Of the data set that has the images.
        sequences: Given the images of a split, and a number to count its keys from.
        channels: What channels are called, given the shape of an image.
        options: What else decides the values.

    Raises:
        DataError: If no application has the other data set.
    """
    if name not in registry.available():
        raise DataError(f"{files.entry.name} is made of the data set {name}, which is not there")
    entry = registry.entry(name)
    base: Dataset = entry.read(Files(entry, files.data_dir, files.may_download))
    rule = f"{base.checksum} {files.entry.name} {options}"
    return SequenceSet(
        name=files.entry.name,
        title=files.entry.title + base.title.removeprefix(entry.title),
        train=sequences(base.train, 0),
        test=sequences(base.test, _TEST),
        labels=base.labels,
        channels=channels(base.shape),
        source=base.source,
        checksum=f"sha256:{hashlib.sha256(rule.encode()).hexdigest()}",
    )


PIXEL_MNIST = Entry(name="pixel-mnist", title="Pixel MNIST", read=partial(pixels, permuted=False))
PERMUTED_MNIST = Entry(
    name="permuted-mnist", title="Permuted MNIST", read=partial(pixels, permuted=True)
)
NOISY_MNIST = Entry(name="noisy-mnist", title="Noisy MNIST", read=noisy)
NOISY_CIFAR10 = Entry(name="noisy-cifar10", title="Noisy CIFAR-10", read=noisy)
