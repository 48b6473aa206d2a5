"""Small archives, and the texts of a graph that they hold."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping

import pytest

PARTS = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "0\n1\n",
    "node_labels": "1\n3\n1\n2\n1\n",
}


MEMBERS = {f"{n:03}.cls": f"{n}\n".encode() * 200 for n in range(8)}


def tar_of(
    files: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT, mode: str = "w"
) -> bytes:
    """An archive of files, each a name and its content."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode, format=form) as packed:
        for name, each in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(each)
            packed.addfile(entry, io.BytesIO(each))
    return content.getvalue()


def zip_of(files: Mapping[str, bytes], folder: str = "") -> bytes:
    """An archive of files in a folder that ends in a slash."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name, each in files.items():
            packed.writestr(f"{folder}{name}", each)
    return content.getvalue()


def tar(form: int = tarfile.PAX_FORMAT) -> bytes:
    return tar_of(MEMBERS.items(), form)


def zipped(method: int = zipfile.ZIP_DEFLATED, folder: str = "MUTAG/", twice: str = "") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as packed:
        for name, each in PARTS.items():
            packed.writestr(f"{folder}MUTAG_{name}.txt", each)
        if twice:
            with pytest.warns(UserWarning, match="Duplicate"):
                packed.writestr(f"{folder}MUTAG_{twice}.txt", "1\n")
    return content.getvalue()


def flipped(content: bytes, place: int) -> bytes:
    """With one bit changed."""
    return content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]
