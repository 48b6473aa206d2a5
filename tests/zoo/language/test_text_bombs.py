"""Texts that are no regular files are refused, by name, at no cost."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from equilibria.run import data
from equilibria.run.data import DataError


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as each:
        each.bind(str(path))


STRANGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("pipe", os.mkfifo, "it is a named pipe, not a regular file"),
    ("socket", bound, "it is a socket, not a regular file"),
    ("device", lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    ("loop", lambda path: path.symlink_to(path.name), "symbolic links"),
]


@pytest.mark.parametrize("make", [s[1] for s in STRANGE], ids=[s[0] for s in STRANGE])
def test_only_regular_files_are_opened_as_texts(tmp_path, monkeypatch, cache, make):
    monkeypatch.chdir(tmp_path)
    make(Path("book.txt"))
    with pytest.raises(DataError, match=r"is not a regular file|book\.txt does not exist"):
        data.language.load(file="book.txt")
