"""Where the metrics of a run go: a file of JSON lines, TensorBoard, and the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from equilibria.metric import LOSS, Metric
from equilibria.tasks import Task
from equilibria.train import files
from equilibria.train.run import Folder
from equilibria.train.tally import Tally


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


class Terminal:
    """A progress bar for the current epoch, and a line for each finished one.

    Args:
        console: where to write.
        epochs: epochs of the run.
        steps: steps per epoch.
        task: gives units and metrics.
    """

    def __init__(self, console: Console, epochs: int, steps: int, task: Task) -> None:
        self.console, self.epochs, self.steps, self.task = console, epochs, steps, task
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=10),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.shown: TaskID | None = None

    def step(self, epoch: int, step: int, tally: Tally, seconds: float) -> None:
        """Show how far epoch `epoch` is, its figures so far and its speed."""
        if self.bar.disable:
            return
        if self.shown is None:
            self.bar.start()
            self.shown = self.bar.add_task("", total=self.steps, epoch="", figures="")
        self.bar.update(
            self.shown,
            completed=step,
            epoch=f"{epoch}/{self.epochs}",
            figures=self._short(tally.summary(self.task)) + self._speed(tally.units, seconds),
        )

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Print the line of a finished epoch."""
        split = self.task.eval_split
        evaluated = record[split]
        parts = [f"[bold]{split} {_written(evaluated, self.task.primary)}[/]"]
        if evaluated["forward"]["status"] is not None:
            parts.append(_converged(evaluated["forward"]["status"]))
        if "spectral_radius" in record:
            parts.append(f"spectral radius {record['spectral_radius']['mean']:.2f}")
        seconds = record["seconds"]
        self.console.print(
            f"epoch {record['epoch']}/{self.epochs}  {self._figures(record['train'])}  "
            f"{', '.join(parts)}{_added(record)}  {seconds:.1f} s"
            f"{self._speed(record[self.task.unit], seconds)}",
            highlight=False,
            soft_wrap=True,
        )

    def _speed(self, units: int, seconds: float) -> str:
        """Return how fast a text is read; nothing for samples."""
        if not self.task.streams or seconds <= 0.0:
            return ""
        return f"  {units / seconds:,.0f} {self.task.unit}/s"

    def close(self) -> None:
        """Remove the bar."""
        self.bar.stop()

    def _figures(self, summary: Mapping[str, Any]) -> str:
        """Return the loss, the primary figure, and the cost of each kind of solve."""
        parts = [_written(summary, LOSS, self.task.primary)]
        for name in ("forward", "adjoint"):
            evals, status = summary[name]["evals"], summary[name]["status"]
            if evals is not None:
                parts.append(f"{name} {evals['mean']:.1f} evals, {_converged(status)}")
        return "  ".join(parts)

    def _short(self, summary: Mapping[str, Any]) -> str:
        """Return the same in one line of a narrow terminal: forward/adjoint, in this order."""
        first = _written(summary, LOSS, self.task.primary)
        solves = [summary[name] for name in ("forward", "adjoint") if summary[name]["evals"]]
        if not solves:
            return first
        evals = "/".join(f"{solve['evals']['mean']:.1f}" for solve in solves)
        converged = "/".join(f"{100 * solve['status']['CONVERGED']:.0f}" for solve in solves)
        return f"{first}  evals {evals}  converged {converged} %"


def _written(summary: Mapping[str, Any], *metrics: Metric) -> str:
    """Return figures with their names, each once."""
    words = (f"{each.label} {each.format(summary[each.name])}" for each in metrics)
    return "  ".join(dict.fromkeys(words))


def _added(record: Mapping[str, Any]) -> str:
    """Return what the regulariser did, nothing where there is none."""
    if "regulariser" not in record:
        return ""
    penalty, applied = (record["regulariser"][name] for name in ("penalty", "applied"))
    text = f"  penalty in {100 * applied:.0f} % of steps"
    return (
        text if penalty is None else f"{text}: {record['regulariser']['gamma']:.2g} x {penalty:.3f}"
    )


def _converged(status: Mapping[str, float]) -> str:
    share = status["CONVERGED"]
    text = f"{100 * share:.1f} % converged"
    return text if share == 1.0 else f"[yellow]{text}[/]"


def _numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", value
