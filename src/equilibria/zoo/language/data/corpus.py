"""A text as numbers: memory-mapped, so that its length costs no memory."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from equilibria import files
from equilibria.run.data.storage import DataError, write_errors
from equilibria.words import plural
from equilibria.zoo.io import download, remote
from equilibria.zoo.io.vocabulary import (
    UNITS,
    Unit,
    Vocabulary,
    build_vocabulary,
    code_points,
    iterate_words,
    number_table,
)
from equilibria.zoo.language.data.reading import Count, Errors, Piece, read_texts


@dataclass(frozen=True)
class TokenArray:
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
class TextStatistics:
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
    splits: dict[str, TokenArray] = field(repr=False)
    statistics: dict[str, TextStatistics] = field(repr=False)
    checksum: str
    source: str
    folder: Path


# --- encode ---------------------------------------------------------------------------------------

# Encode a text once, into a folder of the user's cache, whole or not at all.


SPLITS = ("train", "valid", "test")

# A part of the name of every folder: another layout of the files must not meet this one.
_FORMAT = 1
_INFO = "corpus.json"
_VOCABULARY = "vocabulary.json"
_FEWEST = 2

CONVERTED = "text.utf-8"
"""The file, while a text is encoded, that has it in UTF-8 if it was in another encoding."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A text before it is encoded.

    Attributes:
        name: What the corpus is called.
        key: Checksums of the files and all else that decides what the splits are.
        origin: Where the text came from, for the reader.
        pieces: Opens the text: where each split lies. Called only if nothing is in the cache, with
            a folder where it may write the text as `CONVERTED`.
        check: Called when all has been read, to raise DataError if a file is no longer as it
            was when `key` was made.
    """

    name: str
    key: tuple[Any, ...]
    origin: str
    pieces: Callable[[Path], dict[str, Piece]]
    check: Callable[[], None] | None = None


@dataclass(frozen=True, kw_only=True)
class EncodingOptions:
    """How a text is encoded.

    Attributes:
        unit: ``"words"`` or ``"characters"``.
        min_count: A token that occurs less often in the training split is ``<unk>``.
        max_size: Maximum size of the vocabulary; None for no limit.
        errors: ``"strict"`` or ``"replace"``, for bytes that are not UTF-8.

    Raises:
        ValueError: If one of them is out of its range.
    """

    unit: Unit
    min_count: int = 1
    max_size: int | None = None
    errors: Errors = "strict"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit is {self.unit!r}: expected one of {', '.join(UNITS)}")
        if self.errors not in ("strict", "replace"):
            raise ValueError(f"errors is {self.errors!r}: expected 'strict' or 'replace'")
        if self.min_count < 1:
            raise ValueError(f"min_count is {self.min_count}: expected 1 or more")
        if self.max_size is not None and self.max_size < 3:
            raise ValueError(
                f"max_size is {self.max_size}: expected 3 or more, including <unk> and <eos>"
            )


def load(source: Source, options: EncodingOptions, vocabulary: Vocabulary | None = None) -> Corpus:
    """The encoded text from the cache, where it is put first if it is not there or is damaged.

    Two passes over the text, one for the vocabulary and one to encode, keep a block of it and
    the vocabulary in memory. Two processes that want the same text wait for each other.

    Args:
        source: The text.
        options: How it is encoded.
        vocabulary: Of another text, to encode with; None for that of the text's training split.

    Raises:
        DataError: If the text cannot be read, is too short, or the cache cannot be written.
    """
    given = () if vocabulary is None else (vocabulary.unit, vocabulary.tokens)
    content = json.dumps([_FORMAT, source.key, asdict(options), *given])
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    folder = remote.cache() / "text" / f"{_as_name(source.name)}-{options.unit}-{key}"
    with write_errors(folder, "XDG_CACHE_HOME"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            found = _read(folder, source)
            if found is None:
                _make(folder, source, options, vocabulary)
                found = _read(folder, source)
    if found is None:
        raise DataError(f"{folder} was damaged immediately after it was written: check the disk")
    return found


def _as_name(name: str) -> str:
    """A name for a folder: letters, digits and dashes, not long."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:40]


def _read(folder: Path, source: Source) -> Corpus | None:
    """The corpus in a folder; None if there is none or it is not as it was written."""
    try:
        info = json.loads((folder / _INFO).read_text(encoding="utf-8"))
        for name, checksum in info["files"].items():
            if download.digest(folder / name) != checksum:
                return None
        vocabulary = Vocabulary.load(folder / _VOCABULARY)
        statistics = {split: TextStatistics(**each) for split, each in info["statistics"].items()}
        splits = {
            split: TokenArray(np.memmap(folder / f"{split}.bin", dtype=info["dtype"], mode="r"))
            for split in statistics
        }
    except (OSError, DataError, ValueError, TypeError, KeyError, AttributeError):
        return None
    total = hashlib.sha256(json.dumps([info["dtype"], info["files"]], sort_keys=True).encode())
    return Corpus(
        name=source.name,
        unit=vocabulary.unit,
        vocabulary=vocabulary,
        splits=splits,
        statistics=statistics,
        checksum=f"sha256:{total.hexdigest()}",
        source=source.origin,
        folder=folder,
    )


def _make(
    folder: Path, source: Source, options: EncodingOptions, vocabulary: Vocabulary | None
) -> None:
    """Encode the text into a folder of another name, and rename it when it is complete."""
    files.clear(folder.parent, folder.name)  # of a process that was killed
    with files.whole_folder(folder) as part:
        pieces = source.pieces(part)
        if vocabulary is None:
            vocabulary = build_vocabulary(
                read_texts(pieces["train"], options.errors),
                options.unit,
                part,
                min_count=options.min_count,
                max_size=options.max_size,
            )
        dtype = smallest_type(vocabulary.size)
        statistics = {
            split: _encode(piece, options, vocabulary, dtype, part / f"{split}.bin")
            for split, piece in pieces.items()
        }
        if source.check is not None:
            source.check()
        (part / CONVERTED).unlink(missing_ok=True)
        _check_length(source, options, statistics)
        vocabulary.save(part / _VOCABULARY)
        names = [_VOCABULARY, *(f"{split}.bin" for split in pieces)]
        info = {
            "name": source.name,
            "source": source.origin,
            "options": asdict(options),
            "vocabulary": vocabulary.size,
            "dtype": dtype.str,
            "statistics": {split: asdict(found) for split, found in statistics.items()},
            "files": {name: download.digest(part / name) for name in names},
        }
        (part / _INFO).write_text(json.dumps(info, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # damaged, or it would not be recreated


def smallest_type(size: int) -> np.dtype[Any]:
    """The type that holds the numbers below `size` in the fewest bytes, little-endian."""
    if size <= 1 << 8:
        return np.dtype("u1")
    return np.dtype("<u2" if size <= 1 << 16 else "<i4")


def _encode(
    piece: Piece, options: EncodingOptions, vocabulary: Vocabulary, dtype: np.dtype[Any], path: Path
) -> TextStatistics:
    """Write the tokens of one split, block by block, and count them."""
    count = Count()
    texts = read_texts(piece, options.errors, count)
    tokens, unknown = 0, 0
    seen = np.zeros(vocabulary.size, dtype=bool)
    with path.open("wb") as file:
        for numbers in _numbers(texts, vocabulary, dtype):
            numbers.tofile(file)
            tokens += len(numbers)
            unknown += int((numbers == vocabulary.unknown).sum())
            seen[numbers] = True
    return TextStatistics(
        tokens=tokens,
        types=int(seen.sum()),
        unknown=unknown,
        characters=count.characters,
        bytes=count.bytes,
        replaced=count.replaced,
    )


def _numbers(
    texts: Iterator[str], vocabulary: Vocabulary, dtype: np.dtype[Any]
) -> Iterator[np.ndarray]:
    if vocabulary.unit == "words":
        for words in iterate_words(texts):
            yield np.fromiter(vocabulary.numbers(words), dtype, len(words))
        return
    table = number_table(vocabulary, dtype)
    for text in texts:
        yield table[code_points(text)]


def _check_length(
    source: Source, options: EncodingOptions, statistics: dict[str, TextStatistics]
) -> None:
    total = sum(found.tokens for found in statistics.values())
    if min(found.tokens for found in statistics.values()) >= _FEWEST:
        return
    if len(statistics) == 1:
        raise DataError(
            f"{source.origin} is too short: {plural(total, 'token')} by {options.unit}, "
            f"and {_FEWEST} are needed, one to read and one to predict"
        )
    each = ", ".join(f"{split} {found.tokens}" for split, found in statistics.items())
    advice = "" if options.unit == "characters" else ", or read it by characters"
    raise DataError(
        f"{source.origin} is too short: {plural(total, 'token')} by {options.unit} "
        f"({each}), and each split needs {_FEWEST}, one to read and one to predict. Give a longer "
        f"text or larger shares{advice}"
    )
