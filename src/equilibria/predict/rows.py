"""The folder of a prediction: a row for each image, none lost and none twice, however it ends."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from equilibria.train import files
from equilibria.train.lock import lock

__all__ = ["Journal", "JournalError", "journal"]

ABOUT, ROWS, TABLE = "about.json", "predictions.jsonl", "predictions.csv"
FOLDERS = ("masks", "overlays")

LONGEST = 180
"""Bytes of an image's name that the names of its pictures begin with; 255 are allowed of all."""


class JournalError(RuntimeError):
    """The folder belongs to another prediction, or to something else; the message says which."""


@contextmanager
def journal(
    folder: Path, about: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Journal]:
    """Open the journal in a folder, or begin one, with the lock on it for a block.

    What is left of a row, where the process was killed while it wrote one, is cut off: that image
    is then done again.

    Args:
        folder: where it is; created if missing.
        about: what decides the rows: the run, its weights, the options.
        overwrite: start again, without what an earlier call has written.

    Raises:
        JournalError: the folder holds something else, or predictions by another model or under
            other options.
        Locked: another process writes to it.
    """
    wanted = files.from_json(files.to_json(about))
    _check(folder, wanted, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        if overwrite:
            for name in (ROWS, TABLE):
                (folder / name).unlink(missing_ok=True)
            for name in FOLDERS:
                shutil.rmtree(folder / name, ignore_errors=True)
        for each in (folder, *(folder / name for name in FOLDERS)):
            if each.is_dir():
                files.clear(each)
        files.write_json(folder / ABOUT, wanted)
        rows = folder / ROWS
        rows.touch()
        with rows.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
        with rows.open("a", encoding="utf-8") as file:
            yield Journal(folder, file)


def _check(folder: Path, about: Mapping[str, Any], overwrite: bool) -> None:
    known = folder / ABOUT
    if not folder.is_dir() or not any(not p.name.startswith(".") for p in folder.iterdir()):
        return
    if not known.is_file():
        raise JournalError(
            f"{folder} exists and holds no predictions: name another folder with --out"
        )
    if overwrite:
        return
    try:
        before = files.from_json(known.read_text("utf-8"))
    except ValueError:
        raise JournalError(
            f"{known} is damaged: start again with --overwrite, or elsewhere with --out"
        ) from None
    for key in {**about, **before}:
        if before.get(key) != about.get(key):
            raise JournalError(
                f"{folder} holds predictions with another {key} ({before.get(key)}; now "
                f"{about.get(key)}): start again with --overwrite, or elsewhere with --out"
            )


class Journal:
    """Rows as JSON Lines, appended and flushed whole; a table of them as CSV in the end.

    Attributes:
        folder: where they are.
        done: paths of the images that have a row.
        names: of pictures that were drawn, in small letters, with the path of the image of each.
    """

    def __init__(self, folder: Path, file: TextIO) -> None:
        self.folder, self.rows, self.table = folder, folder / ROWS, folder / TABLE
        self._file = file
        self.done: set[str] = set()
        self.names: dict[str, str] = {}
        for row in self.read():
            self.done.add(row["path"])
            if "mask" in row:
                self.names[Path(row["mask"]).name.casefold()] = row["path"]

    def read(self) -> Iterator[dict[str, Any]]:
        """Go through the rows that are written.

        Raises:
            JournalError: one is damaged.
        """
        with self.rows.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield files.from_json(line)
                except ValueError:
                    raise JournalError(
                        f"line {number} of {self.rows} is damaged: start again with --overwrite"
                    ) from None

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows, and have them on the disk before anything else is done."""
        self._file.write("".join(files.to_json(row) + "\n" for row in rows))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done |= {row["path"] for row in rows}

    def name_of(self, path: str) -> str:
        """Return a name for what is drawn of an image: its own, with a number if that is taken.

        Names differ in more than small and capital letters, which not every disk tells apart, and
        leave room for a number and for the name of a temporary file.
        """
        stem, number = os.fsdecode(os.fsencode(Path(path).stem)[:LONGEST]), 1
        while True:
            name = f"{stem}.png" if number == 1 else f"{stem}-{number}.png"
            if self.names.setdefault(name.casefold(), path) == path:
                return name
            number += 1

    def draw(self, kind: str, name: str, content: bytes) -> None:
        """Write a picture into one of `FOLDERS`, whole or not at all."""
        (self.folder / kind).mkdir(exist_ok=True)
        files.write_bytes(self.folder / kind / name, content)

    def tabulate(self) -> int:
        """Write all rows as CSV, whole or not at all, and return how many are errors."""
        columns: dict[str, None] = {}
        wrong = 0
        for row in self.read():
            columns |= dict.fromkeys(_flat(row))
            wrong += "error" in row

        def save(file: Any) -> None:
            # A name of a file need not be text.
            text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="")
            writer = csv.DictWriter(text, list(columns), restval="")
            writer.writeheader()
            for row in self.read():
                writer.writerow(_flat(row))
            text.flush()
            text.detach()

        files.write(self.table, save)
        return wrong


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without lists and dictionaries: their entries have columns of their own."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{key}: {name}": each for name, each in value.items()}
        elif isinstance(value, list):
            for place, each in enumerate(value, 1):
                found |= {f"{name} {place}": part for name, part in each.items()}
        else:
            found[key] = value
    return found
