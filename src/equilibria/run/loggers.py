"""Where the metrics of a run go: a file of JSON lines, TensorBoard, and the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from equilibria import files
from equilibria.run.run import Folder


class Logger(Protocol):
    """Where the metrics of an epoch go."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Take the metrics of an epoch."""

    def close(self) -> None:
        """Write what is left."""


class JsonLines:
    """metrics.jsonl: one line per epoch, each flushed to disk.

    Args:
        folder: the run.
        records: of the finished epochs from which the run continues; the file holds these.
    """

    def __init__(self, folder: Folder, records: Sequence[Mapping[str, Any]]) -> None:
        self.path = folder.metrics
        text = "".join(files.to_json(record) + "\n" for record in records)
        if not self.path.is_file() or self.path.read_bytes() != text.encode():
            files.write_text(self.path, text)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Append the metrics of an epoch."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(files.to_json(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Do nothing: no file is left open."""


class TensorBoard:
    """Events for TensorBoard, one scalar for each number among the metrics.

    Args:
        folder: the run.
        step: step from which the run continues; TensorBoard hides what was logged after it.
    """

    def __init__(self, folder: Folder, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        self.writer = SummaryWriter(str(folder.events), purge_step=step + 1 if step else None)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Log the metrics of an epoch at its last step."""
        for name, value in _numbers(record):
            self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self.writer.close()


def _numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", value
