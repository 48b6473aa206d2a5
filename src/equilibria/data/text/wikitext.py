"""WikiText-2 and WikiText-103 by words: articles of Wikipedia (Merity et al. 2016)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from equilibria.data import checksums, locate
from equilibria.data.errors import DataError
from equilibria.data.fetch import fetch
from equilibria.data.text.encode import SPLITS, Source
from equilibria.data.text.reading import Piece

# The address of the authors, which stopped to answer; then that of the first author himself.
ADDRESSES = (
    "https://s3.amazonaws.com/research.metamind.io/wikitext/",
    "https://wikitext.smerity.com/",
)


@dataclass(frozen=True, kw_only=True)
class Release:
    """One of the two corpora.

    Attributes:
        name: What `load` knows it by.
        title: What it is called.
        folder: Its folder in the archive.
        size: What there is to download.
        md5: md5 of the archive ``FOLDER-v1.zip`` (torchtext, `datasets/wikitext103.py` and
            `datasets/wikitext2.py`).
        sha1: sha1 of each file in it (gluonnlp, `data/corpora/wikitext.py`), for copies that
            somebody else unpacked.
    """

    name: str
    title: str
    folder: str
    size: str
    md5: str
    sha1: dict[str, str]

    def source(
        self, data_dir: str | os.PathLike[str] | None = None, download: bool = True
    ) -> Source:
        """The text, looked for in `data_dir`, ``$EQUILIBRIA_DATA`` and the user's cache.

        The archive serves as it is; so do its three files, unpacked, under their own names or
        ``train.txt``, ``valid.txt`` and ``test.txt`` in a folder of the corpus' name. What is
        missing is downloaded into the first of these places when the text is first encoded.
        """
        return Source(
            name=self.name,
            key=(self.md5, *self.sha1.values()),
            origin=f"{self.title}, {ADDRESSES[0]}{self.folder}-v1.zip",
            pieces=partial(self._pieces, data_dir, download),
        )

    def _pieces(self, data_dir: str | os.PathLike[str] | None, download: bool) -> dict[str, Piece]:
        places = locate.folders(self.name, data_dir)
        found = {split: self._unpacked(split, places) for split in SPLITS}
        pieces = {split: Piece(path) for split, path in found.items() if path is not None}
        if len(pieces) == len(SPLITS):
            for split, piece in pieces.items():
                checksums.check(piece.path, f"sha1:{self.sha1[split]}")
            return pieces
        archive = self._archive(places, download, [s for s in SPLITS if s not in pieces])
        return {
            split: Piece(archive, member=f"{self.folder}/wiki.{split}.tokens") for split in SPLITS
        }

    def _unpacked(self, split: str, places: list[Path]) -> Path | None:
        own = [
            folder
            for place in places
            for folder in (place, place / self.folder)
            if folder.name in (self.name, self.folder)
        ]
        # Another corpus has files of these names: they count in a folder of this one alone.
        return locate.find((f"wiki.{split}.tokens", f"{split}.txt"), own)

    def _archive(self, places: list[Path], download: bool, missing: list[str]) -> Path:
        name = f"{self.folder}-v1.zip"
        path = locate.find((name,), places)
        if path is not None:
            checksums.check(path, f"md5:{self.md5}")
            return path
        if not download:
            raise DataError(
                f"{self.name}: neither {name} nor all of its files (missing: "
                f"{', '.join(f'wiki.{split}.tokens' for split in missing)}) are in "
                f"{', '.join(map(str, places))}. Allow the download ({self.size}), or fetch "
                f"{ADDRESSES[0]}{name} and name its folder with --data-dir or EQUILIBRIA_DATA"
            )
        urls = [f"{address}{name}" for address in ADDRESSES]
        return fetch(urls, places[0] / name, checksum=f"md5:{self.md5}")


WIKITEXT2 = Release(
    name="wikitext2",
    title="WikiText-2",
    folder="wikitext-2",
    size="4 MB",
    md5="542ccefacc6c27f945fb54453812b3cd",
    sha1={
        "train": "863f29c46ef9d167fff4940ec821195882fe29d1",
        "valid": "0418625c8b4da6e4b5c7a0b9e78d4ae8f7ee5422",
        "test": "c7b8ce0aa086fb34dab808c5c49224211eb2b172",
    },
)

WIKITEXT103 = Release(
    name="wikitext103",
    title="WikiText-103",
    folder="wikitext-103",
    size="190 MB",
    md5="9ddaacaf6af0710eda8c456decff7832",
    sha1={
        "train": "b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
        "valid": "c326ac59dc587676d58c422eb8a03e119582f92b",
        "test": "8a5befc548865cec54ed4273cf87dbbad60d1e47",
    },
)
