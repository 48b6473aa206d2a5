"""The folder of a prediction: a row for each image, none lost and none twice, however it ends."""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from equilibria import files
from equilibria.run.lock import lock

ABOUT = "about.json"

FLUSHED = 1.0
"""Seconds between two flushes of the rows to the disk: a power cut takes no more. A process that is
killed takes none."""

LONGEST = 180
"""Bytes of an image's name that the names of its pictures begin with; 255 are allowed of all."""


class JournalError(RuntimeError):
    """The folder belongs to another prediction, or to something else; the message says which."""


@dataclass(frozen=True, kw_only=True)
class JournalLayout:
    """What is in the folder of a prediction.

    Attributes:
        rows: name of the file of rows.
        table: name of the table of them.
        folders: of what is written for each image.
        files: keys of a row that each name a file in these folders.
    """

    rows: str = "predictions.jsonl"
    table: str = "predictions.csv"
    folders: tuple[str, ...] = ("masks", "overlays")
    files: tuple[str, ...] = ("mask", "overlay")


PREDICTIONS = JournalLayout()
"""Of classes and masks."""


@contextmanager
def journal(
    folder: Path,
    about: Mapping[str, Any],
    *,
    overwrite: bool = False,
    layout: JournalLayout = PREDICTIONS,
) -> Iterator[Journal]:
    """Open the journal in a folder, or begin one, with the lock on it for a block.

    What is left of a row, where the process was killed while it wrote one, is cut off, and a row
    whose pictures are missing is taken out: those images are then done again.

    Args:
        folder: where it is; created if missing.
        about: what decides the rows: the run, its weights, the options.
        overwrite: start again, without what an earlier call has written.
        layout: what is in it.

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
            for name in (layout.rows, layout.table):
                (folder / name).unlink(missing_ok=True)
            for name in layout.folders:
                shutil.rmtree(folder / name, ignore_errors=True)
        for each in (folder, *(folder / name for name in layout.folders)):
            if each.is_dir():
                files.clear(each)
        files.write_json(folder / ABOUT, wanted)
        rows = folder / layout.rows
        content = rows.read_bytes() if rows.exists() else b""
        lines = content.split(b"\n")[:-1]  # without what is left of a row
        kept = b"".join(line + b"\n" for line in lines if _has_pictures(folder, line, layout))
        if kept != content or not rows.exists():
            files.write_bytes(rows, kept)
        with rows.open("a", encoding="utf-8") as file:
            try:
                yield Journal(folder, file, layout)
            finally:
                os.fsync(file.fileno())


def _has_pictures(folder: Path, line: bytes, layout: JournalLayout) -> bool:
    """Whether the pictures of a row are there: pictures are not flushed to the disk one by one."""
    try:
        row = files.from_json(line.decode())
        names = [row[key] for key in layout.files if key in row]
    except (ValueError, TypeError):  # whoever reads the rows says so
        return True
    paths = [folder / name for name in names]
    return all(path.is_file() and path.stat().st_size for path in paths)


def _check(folder: Path, about: Mapping[str, Any], overwrite: bool) -> None:
    known = folder / ABOUT
    if folder.exists() and not folder.is_dir():
        raise JournalError(f"{folder} is a file: name a folder with --out")
    if not folder.is_dir() or not any(not p.name.startswith(".") for p in folder.iterdir()):
        return
    if not known.is_file():
        raise JournalError(
            f"{folder} exists and holds no predictions, but other files: name another folder with "
            "--out"
        )
    if overwrite:
        return
    try:
        before = files.from_json(known.read_text("utf-8"))
    except ValueError:
        raise JournalError(
            f"{known} is damaged: start again with --overwrite, or name another folder with --out"
        ) from None
    for key in {**about, **before}:
        if before.get(key) != about.get(key):
            what = _describe_change(key, before.get(key), about.get(key))
            raise JournalError(
                f"{folder} holds predictions {what}: start again with --overwrite, or name another "
                "folder with --out"
            )


def _describe_change(key: str, before: Any, now: Any) -> str:
    """By what predictions differ from those of this call."""
    if key == "run":
        return f"of another run, {before}"
    if key == "weights":
        return "with other weights of this run, which has been trained on since"
    if key == "learned_solver":
        return "by another learned solver of this run, which has been distilled anew since"
    return f"with other options ({key}: {_text(before)}; now: {_text(now)})"


def _text(value: Any) -> str:
    """An option's value as the command's user knows it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


class Journal:
    """Rows as JSON Lines, appended and flushed whole; a table of them as CSV in the end.

    Attributes:
        folder: where they are.
        done: paths of the images that have a row.
        names: of pictures that were drawn, in small letters, with the path of the image of each.
    """

    def __init__(self, folder: Path, file: TextIO, layout: JournalLayout = PREDICTIONS) -> None:
        self.folder, self.rows, self.table = folder, folder / layout.rows, folder / layout.table
        self._file, self._flushed = file, time.monotonic()
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
        """Write rows, whole, and flush them to the disk at times."""
        self._file.write("".join(files.to_json(row) + "\n" for row in rows))
        self._file.flush()
        if time.monotonic() > self._flushed + FLUSHED:
            os.fsync(self._file.fileno())
            self._flushed = time.monotonic()
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
        """Write a picture into one of the layout's folders, whole or not at all."""
        (self.folder / kind).mkdir(exist_ok=True)
        path = self.folder / kind / name
        files.write(path, lambda file: file.write(content), flush=False)

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
