"""Where the metrics of a run go: a file of JSON lines, TensorBoard, and the terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from equilibria import files
from equilibria.metric import Metric
from equilibria.run.run import Folder
from equilibria.run.tally import Tally
from equilibria.run.tasks import Task
from equilibria.words import percent


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


# --- terminal -------------------------------------------------------------------------------------

# What a run shows on the terminal while it trains.


EVERY = 60.0
"""Seconds between lines of a long epoch where the output is no terminal."""


def _unless_gone(show: Callable[..., None]) -> Callable[..., None]:
    """Let a method of `Terminal` do nothing where the terminal is gone: the run goes on."""

    @wraps(show)
    def call(self: Terminal, *given: Any) -> None:
        try:
            show(self, *given)
        except OSError:
            self.console.quiet = True

    return call


class Terminal:
    """A progress bar for the current epoch, and a line for each finished one.

    Where the output is no terminal, a long epoch prints a line now and then in place of the bar.

    Args:
        console: where to write.
        epochs: epochs of the run.
        steps: steps per epoch.
        task: gives units and metrics.
        clock: gives the time in seconds.
    """

    def __init__(
        self,
        console: Console,
        epochs: int,
        steps: int,
        task: Task,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.epochs, self.steps, self.task = console, epochs, steps, task
        self.clock, self.printed = clock, clock()
        self.left = _Left(epochs, steps)
        self.bar = _Bar(console)
        self.shown: TaskID | None = None

    @_unless_gone
    def step(self, epoch: int, step: int, tally: Tally, seconds: float) -> None:
        """Show how far epoch `epoch` is, its figures so far, and the time that is left.

        Args:
            epoch: from 1.
            step: steps of the epoch that are done.
            tally: of these.
            seconds: that they took.
        """
        now = self.clock()
        in_epoch, in_run = self.left.step(epoch, step, seconds, now)
        terminal = self.console.is_terminal
        if not terminal and now - self.printed < EVERY:
            return
        figures = self._short(tally.summary(self.task))
        if self.task.streams:  # a text: how fast it is read
            figures += self._rate(tally.units, seconds)
        if terminal:
            if self.shown is None:
                self.bar.start()
                self.shown = self.bar.add_task("", total=self.steps, epoch="", left="")
            left = f"{_clock(in_epoch)} left" + (f", run {_clock(in_run)}" * (epoch < self.epochs))
            self.bar.figures = figures
            self.bar.update(self.shown, completed=step, epoch=f"{epoch}/{self.epochs}", left=left)
            return
        self.printed = now
        self.console.print(
            f"epoch {epoch}/{self.epochs}  step {step}/{self.steps}  {figures}  "
            f"left: {_clock(in_epoch)}, run {_clock(in_run)}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    @_unless_gone
    def epoch(self, record: Mapping[str, Any]) -> None:
        """Print the line of a finished epoch."""
        split = self.task.eval_split
        evaluated = record[split]
        parts = [f"[bold]{split} {_format(evaluated, self.task.primary)}[/]"]
        if evaluated["forward"]["status"] is not None:
            parts.append(_describe_convergence(evaluated["forward"]["status"]))
        if "spectral_radius" in record:
            parts.append(f"spectral radius {record['spectral_radius']['mean']:.2f}")
        if (audit := record.get("audit")) is not None:
            cosine = audit.get("cosine")
            parts.append(audit["adjoint"] + ("" if cosine is None else f", cosine {cosine:.3f}"))
        seconds, self.printed = record["seconds"], self.clock()
        in_run = self.left.epoch(record["epoch"], seconds, self.printed)
        left = f", {_clock(in_run)} left" if record["epoch"] < self.epochs else ""
        speed = self._rate(record[self.task.unit], seconds)
        self.console.print(
            f"epoch {record['epoch']}/{self.epochs}  {self._figures(record['train'])}  "
            f"{', '.join(parts)}{_describe_penalty(record)}{_describe_reuse(record)}  "
            f"{seconds:.1f} s{speed}{_throughput(record)}{left}",
            markup=True,
            highlight=False,
            soft_wrap=True,
        )

    def _rate(self, units: int, seconds: float) -> str:
        """Return units a second."""
        if seconds <= 0.0:
            return ""
        return f"  {units / seconds:,.0f} {self.task.unit}/s"

    @_unless_gone
    def close(self) -> None:
        """Remove the bar."""
        self.bar.stop()

    def _figures(self, summary: Mapping[str, Any]) -> str:
        """Return the loss, the primary figure, and the cost of each kind of solve."""
        parts = [_format(summary, self.task.loss_metric, self.task.primary)]
        for name in ("forward", "adjoint"):
            evals, status = summary[name]["evals"], summary[name]["status"]
            if evals is not None:
                parts.append(f"{name} {evals['mean']:.1f} evals, {_describe_convergence(status)}")
        return "  ".join(parts)

    def _short(self, summary: Mapping[str, Any]) -> str:
        """Return the same in one line of a narrow terminal: forward/adjoint, in this order."""
        first = _format(summary, self.task.loss_metric, self.task.primary)
        solves = [summary[name] for name in ("forward", "adjoint") if summary[name]["evals"]]
        if not solves:
            return first
        evals = "/".join(f"{solve['evals']['mean']:.1f}" for solve in solves)
        converged = "/".join(f"{100 * solve['status']['CONVERGED']:.0f}" for solve in solves)
        return f"{first}  evals {evals}  converged {converged} %"


class _Left:
    """How long an epoch and a run still take, at the speed of the current epoch."""

    def __init__(self, epochs: int, steps: int) -> None:
        self.epochs, self.steps = epochs, steps
        self.last: float | None = None
        """When the last step of the epoch but one was done."""
        self.evaluation = 0.0
        """How long the last evaluation took."""

    def step(self, epoch: int, step: int, seconds: float, now: float) -> tuple[float, float]:
        """Return the seconds that are left of the epoch's steps, and of the run."""
        self.last = now
        each = seconds / step
        in_epoch = each * (self.steps - step)
        whole = each * self.steps + self.evaluation
        return in_epoch, in_epoch + self.evaluation + (self.epochs - epoch) * whole

    def epoch(self, epoch: int, seconds: float, now: float) -> float:
        """Return the seconds that are left of the run after an epoch whose steps took `seconds`."""
        if self.last is not None:
            self.evaluation = max(0.0, now - self.last - seconds / self.steps)
        return (self.epochs - epoch) * (seconds + self.evaluation)


class _Bar(Progress):
    """A bar as wide as the terminal allows, and a line of figures below it.

    Args:
        console: a terminal.
    """

    def __init__(self, console: Console) -> None:
        self.figures = ""
        whole = Column(no_wrap=True)
        super().__init__(
            TextColumn("epoch {task.fields[epoch]}", table_column=whole),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            TextColumn("{task.completed}/{task.total}", table_column=whole.copy()),
            TextColumn("{task.fields[left]}", table_column=whole.copy()),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the two lines."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self.figures, no_wrap=True, overflow="ellipsis")


def _clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _format(summary: Mapping[str, Any], *metrics: Metric) -> str:
    """Return figures with their names, each once."""
    words = (f"{each.label} {each.format(summary[each.name])}" for each in metrics)
    return "  ".join(dict.fromkeys(words))


def _describe_penalty(record: Mapping[str, Any]) -> str:
    """Return what the regulariser did, nothing where there is none."""
    if "regulariser" not in record:
        return ""
    penalty, applied = (record["regulariser"][name] for name in ("penalty", "applied"))
    text = f"  penalty in {percent(applied)} of steps"
    return (
        text if penalty is None else f"{text}: {record['regulariser']['gamma']:.2g} x {penalty:.3f}"
    )


def _describe_reuse(record: Mapping[str, Any]) -> str:
    """Return how near the states were from which the last step went on, if there were any."""
    residual = record.get("reuse", {}).get("residual")
    return "" if residual is None else f"  residual of kept states {residual['last']:.1e}"


def _throughput(record: Mapping[str, Any]) -> str:
    """Return what processes waited for each other, if they did."""
    found = record.get("throughput", {})
    if not found.get("idle"):
        return ""
    evaluations = found["evaluations"]
    return (
        f"  {evaluations['mean']:.1f} evals a step, {evaluations['max']:.1f} the slowest "
        f"process: {percent(found['idle'])} idle"
    )


def _describe_convergence(status: Mapping[str, float]) -> str:
    share = status["CONVERGED"]
    text = f"{percent(share)} converged"
    return text if share == 1.0 else f"[yellow]{text}[/]"
