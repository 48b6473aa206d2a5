"""Texts for language models: encoded once, by words or characters, and read from disk.

    corpus = eq.data.text.load("ptb")
    corpus = eq.data.text.load(file="book.txt", unit="characters")
    corpus.splits["train"][:100]      # a tensor of token numbers

The encoded text lies in the user's cache; neither its length nor that of its lines costs memory.
"""

from __future__ import annotations

import difflib
import os

from equilibria.data.text import encode, ptb, user, wikitext
from equilibria.data.text.corpus import Corpus, Statistics, Tokens
from equilibria.data.text.reading import Errors
from equilibria.data.text.trigram import Trigram
from equilibria.data.text.vocabulary import UNITS, Unit, Vocabulary

__all__ = ["Corpus", "Statistics", "Tokens", "Trigram", "Vocabulary", "available", "load"]

_SOURCES = {
    "ptb": ptb.source,
    "wikitext2": wikitext.WIKITEXT2.source,
    "wikitext103": wikitext.WIKITEXT103.source,
}


def available() -> list[str]:
    """The names that `load` knows, sorted."""
    return sorted(_SOURCES)


def load(
    name: str | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    unit: Unit | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    valid_share: float = 0.05,
    test_share: float = 0.05,
    min_count: int = 1,
    max_size: int | None = None,
    errors: Errors = "strict",
) -> Corpus:
    """Read a text, by name or from a file, and encode it first where that was not done before.

    Args:
        name: One of `available()`, with its own splits; None for a text of the user's.
        file: A text in UTF-8 where `name` is None.
        unit: ``"words"`` (split at white space, a newline is ``<eos>``) or ``"characters"``.
            None: words for a named text, characters for a file.
        data_dir: Folder that is looked in before ``$EQUILIBRIA_DATA`` and the user's cache.
        download: Whether what is missing may be downloaded.
        valid_share: Share of a file's text, after that for training, for the validation split.
        test_share: Share of a file's text, its end, for the test split.
        min_count: A token that stands less often in the training split becomes ``<unk>``.
        max_size: The most tokens of the vocabulary, ``<unk>`` and ``<eos>`` among them; None
            for all.
        errors: ``"replace"`` reads U+FFFD for bytes that are not UTF-8 and counts them in the
            statistics; ``"strict"`` raises.

    Raises:
        ValueError: If no text goes by that name, both or neither of `name` and `file` are given,
            or an option is out of its range.
        DataError: If the text is missing, damaged, out of reach, compressed, empty, too short for
            three splits, or not UTF-8; the message says what to do.
    """
    if (name is None) == (file is None):
        raise ValueError(
            f"name is {name!r} and file is {file!r}: give one of them, a name "
            f"({', '.join(available())}) or a text file"
        )
    if name is not None and name not in _SOURCES:
        near = difflib.get_close_matches(name, _SOURCES, n=1, cutoff=0)
        raise ValueError(
            f"no text is called {name!r}: did you mean {near[0]!r}? "
            f"There are {', '.join(available())}, and any text file with file="
        )
    unit = unit or ("words" if file is None else "characters")
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}: expected one of {', '.join(UNITS)}")
    if errors not in ("strict", "replace"):
        raise ValueError(f"errors is {errors!r}: expected 'strict' or 'replace'")
    if min_count < 1:
        raise ValueError(f"min_count is {min_count}: expected 1 or more")
    if max_size is not None and max_size < 3:
        raise ValueError(f"max_size is {max_size}: expected 3 or more, <unk> and <eos> count")
    options = encode.Options(unit=unit, min_count=min_count, max_size=max_size, errors=errors)
    if name is not None:
        return encode.load(_SOURCES[name](data_dir, download), options)
    assert file is not None
    source = user.source(file, unit, valid_share=valid_share, test_share=test_share)
    return encode.load(source, options)
