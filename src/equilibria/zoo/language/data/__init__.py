"""Texts for language models: encoded once, by words or characters, and read from disk.

    corpus = eq.data.language.load("ptb")
    corpus = eq.data.language.load(file="book.txt", unit="characters")
    corpus.splits["train"][:100]      # a tensor of token numbers

The encoded text is kept in the user's cache; neither its length nor that of its lines costs memory.
"""

from __future__ import annotations

import os
from typing import Any

from equilibria.zoo.io.vocabulary import Unit, Vocabulary
from equilibria.zoo.language.data import corpus, user
from equilibria.zoo.language.data.corpus import Corpus, TextStatistics, TokenArray
from equilibria.zoo.language.data.reading import Errors
from equilibria.zoo.language.data.trigram import Trigram

__all__ = ["Corpus", "TextStatistics", "TokenArray", "Trigram", "Vocabulary", "available", "load"]


def available() -> list[str]:
    """The names that `load` knows, sorted."""
    from equilibria.run.data import registry  # which has the texts of this package

    return registry.available(Corpus)


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
    encoding: str = "utf-8",
    vocabulary: Vocabulary | None = None,
) -> Corpus:
    """Read a text, by name or from a file, and encode it first if it has not been encoded.

    Args:
        name: One of `available()`, with its own splits; None for a user's text.
        file: A text, if `name` is None.
        unit: ``"words"`` (split at white space, a newline is ``<eos>``) or ``"characters"``.
            None: words for a named text, characters for a file.
        data_dir: Folder that is searched before ``$EQUILIBRIA_DATA`` and the user's cache.
        download: Whether missing files may be downloaded.
        valid_share: Share of a file's text, after the training part, for the validation split.
        test_share: Share of a file's text, at its end, for the test split.
        min_count: A token that occurs less often in the training split becomes ``<unk>``.
        max_size: Maximum size of the vocabulary, including ``<unk>`` and ``<eos>``; None for no
            limit.
        errors: ``"replace"`` reads U+FFFD for bytes that are not UTF-8 and counts them in the
            statistics; ``"strict"`` raises.
        encoding: Of a file, one that Python knows, such as ``"cp1252"``.
        vocabulary: Of another text, to encode with, in its unit and without limits: for a text
            that a model is evaluated on and did not learn from. All of a file is then the split
            ``"test"``.

    Raises:
        ValueError: If no text has that name, both or neither of `name` and `file` are given,
            or an option is out of its range.
        DataError: If the text is missing, damaged, out of reach, compressed, empty, too short for
            three splits, or in another encoding; the message says what to do.
    """
    from equilibria.run.data import registry

    if name is not None and not isinstance(name, str):
        raise TypeError(
            f"name is {name!r}, and the name of a text is a str: give a file as load(file={name!r})"
        )
    if (name is None) == (file is None):
        raise ValueError(
            f"name is {name!r} and file is {file!r}: give one of them, a name "
            f"({', '.join(available())}) or a text file"
        )
    if encoding.lower() not in ("utf-8", "utf8"):
        if name is not None:
            raise ValueError(f"encoding is {encoding!r}, and '{name}' is in utf-8: leave it out")
        if errors == "replace":
            raise ValueError(f"errors is 'replace', which is for utf-8, not for {encoding}")
    limits: Any = {"min_count": min_count, "max_size": max_size, "errors": errors}
    if vocabulary is not None:
        unit, limits = vocabulary.unit, {"errors": errors}
        if name is not None:
            limits["vocabulary"] = vocabulary
    if name is not None:
        return registry.load(name, data_dir, download, kind=Corpus, unit=unit, **limits)
    assert file is not None
    options = corpus.EncodingOptions(unit=unit or "characters", **limits)
    source = user.source(
        file,
        options.unit,
        valid_share=valid_share,
        test_share=test_share,
        whole=vocabulary is not None,
        encoding=encoding,
    )
    return corpus.load(source, options, vocabulary)
