"""A text as numbers: memory-mapped, so that its length costs no memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.zoo.io.vocabulary import Unit, Vocabulary


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text in order, on disk until they are asked for.

    Attributes:
        array: Their numbers, (count,), an unsigned or int32 memory map.
    """

    array: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        """Copy some tokens into memory, as int64.

        A place gives a scalar, a slice a tensor (count,), a tensor of places a tensor of its
        shape.
        """
        if isinstance(index, Tensor):
            index = index.numpy()  # pyright: ignore[reportAssignmentType]
        return torch.from_numpy(np.asarray(self.array[index], dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Counts over one split.

    Attributes:
        tokens: How many there are.
        types: How many different ones.
        unknown: How many are ``<unk>``.
        characters: Unicode characters of the text, spaces and newlines among them.
        bytes: Bytes of the text.
        replaced: Characters that were put for bytes that are not UTF-8.
    """

    tokens: int
    types: int
    unknown: int
    characters: int
    bytes: int
    replaced: int

    @property
    def unknown_share(self) -> float:
        """Share of the tokens that are ``<unk>``."""
        return self.unknown / self.tokens

    @property
    def characters_per_token(self) -> float:
        """Mean characters per token; bits per token over this are bits per character."""
        return self.characters / self.tokens


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A text, encoded and split.

    Attributes:
        name: What `load` knows it by, or the name of the user's file.
        unit: ``"words"`` or ``"characters"``.
        vocabulary: The tokens, from the training split alone, or those of another text.
        splits: ``"train"``, ``"valid"`` and ``"test"``; of a file that is encoded as another text
            was, ``"test"`` alone.
        statistics: Counts for each split.
        checksum: ``sha256:...`` over the tokens of all splits and the vocabulary, to tell two
            runs on the same data from two runs on different data.
        source: Where the text came from.
        folder: Where the encoded text lies.
    """

    name: str
    unit: Unit
    vocabulary: Vocabulary
    splits: dict[str, Tokens] = field(repr=False)
    statistics: dict[str, Statistics] = field(repr=False)
    checksum: str
    source: str
    folder: Path
