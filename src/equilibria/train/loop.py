"""The training loop: from a recipe to a run folder, or from where a run was stopped."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rich.console import Console

from equilibria.solve import SolveWarning
from equilibria.train import checkpoint, evaluation, files
from equilibria.train.loggers import JsonLines, Logger, TensorBoard, Terminal
from equilibria.train.recipe import Recipe
from equilibria.train.run import Folder, describe
from equilibria.train.trainer import Probe, Trainer

__all__ = ["Interrupted", "Stop", "fit", "train"]

Stop = Callable[[], bool]
"""Tells after each step whether to save and stop there, as a signal would."""


class Interrupted(RuntimeError):
    """Training was stopped and can be resumed; the message says how."""


def train(
    recipe: Recipe,
    path: str | Path,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    console: Console | None = None,
    probe: Probe | None = None,
    stop: Stop = lambda: False,
) -> None:
    """Train a model as `recipe` says and write the run to the folder `path`.

    Under `torchrun` or `accelerate launch` all processes call this; the first one writes.

    Args:
        recipe: what to do.
        path: the run folder, which must not exist yet, or be a run of this recipe under `resume`.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.
        resume: continue from the checkpoint in the folder; a finished run is left as it is.
        console: where to write; None for standard output.
        probe: takes further measurements after each epoch.
        stop: tells when to stop.

    Raises:
        RunError: the folder exists, or cannot be resumed with this recipe.
        CheckpointError: the checkpoint is damaged, or of another run.
        TrainingError: the loss is no longer finite.
        ODEError: a neural ODE can no longer be integrated.
        Interrupted: a signal or `stop` ended the run; it was saved.
    """
    folder = Folder(Path(path))
    if resume:
        folder.read_recipe()  # fails before any data are read if this is not a run
    else:
        folder.check_free()  # on all processes, so that none is left waiting for another
    accelerator = evaluation.accelerator(recipe.precision)
    console = (console or Console()) if accelerator.is_main_process else Console(quiet=True)
    with accelerator.main_process_first():  # which downloads what is missing
        task = recipe.task.load(data_dir)
    recipe = replace(recipe, model=task.complete(recipe.model))
    if resume:
        folder.check_same(recipe)
    fresh = not (resume and folder.checkpoint.exists())
    begins = recipe.initialisation
    if fresh and begins is not None and begins.radius is not None:
        console.print(
            f"Searching for the scale of the recurrent weights that gives a spectral radius of "
            f"{begins.radius:g} on the first batch ...",
            markup=False,
        )
    trainer = Trainer(recipe, task, accelerator, probe=probe, fresh=fresh)
    if accelerator.is_main_process and not resume:
        folder.create(recipe)
    fit(trainer, folder, console, resume=resume, stop=stop)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    console.print(
        f"The run is in {path}. Next: equilibria report {path}", soft_wrap=True, markup=False
    )


def fit(
    trainer: Trainer,
    folder: Folder,
    console: Console,
    *,
    resume: bool = False,
    stop: Stop = lambda: False,
) -> None:
    """Train until the recipe's last epoch, and evaluate; see `train`."""
    main = trainer.accelerator.is_main_process
    if resume:
        trainer.restore(folder)
        if trainer.step == trainer.steps and folder.evaluation.exists():
            console.print(f"{folder.path} is finished: there is nothing to resume", markup=False)
            return
    if trainer.step == 0 and main:
        about = describe(trainer.model, trainer.task, trainer.accelerator)
        if trainer.beginning is not None:
            console.print(f"Recurrent weights: {trainer.beginning}", markup=False)
            about["initialisation"] = trainer.beginning.json()
        files.write_json(folder.info, about)
        trainer.task.save(folder.path)
    with ExitStack() as stack:
        terminal = Terminal(console, trainer.recipe.epochs, trainer.steps_per_epoch, trainer.task)
        loggers: list[Logger] = [terminal]
        if main:
            epochs = trainer.step // trainer.steps_per_epoch
            loggers = [JsonLines(folder, epochs), TensorBoard(folder, trainer.step), terminal]
        for logger in loggers:
            stack.callback(logger.close)
        stopped = stack.enter_context(_signals(trainer.accelerator.num_processes == 1))
        # Shares of failed backward solves are logged; a warning per step would bury them.
        stack.enter_context(warnings.catch_warnings(action="ignore", category=SolveWarning))
        every = trainer.recipe.save_every
        while trainer.step < trainer.steps:
            trainer.train_step()
            epoch, position = divmod(trainer.step, trainer.steps_per_epoch)
            if position:
                terminal.step(epoch + 1, position, trainer.tally, trainer.seconds)
            else:
                record = trainer.finish_epoch()
                for logger in loggers:
                    logger.epoch(record)
            ends = bool(stopped) or stop()
            if position == 0 or ends or (every and trainer.step % every == 0):
                trainer.save(folder)
            if ends and trainer.step < trainer.steps:
                raise Interrupted(
                    f"stopped in epoch {epoch + 1} after step {trainer.step} of {trainer.steps}; "
                    f"it is saved; continue with: equilibria train {folder.recipe} "
                    f"--out {folder.path} --resume"
                )
    conclude(trainer, folder, console)


def conclude(trainer: Trainer, folder: Folder, console: Console) -> None:
    """Write the weights and evaluation.json; warn if samples did not converge."""
    result = trainer.evaluate("test", () if trainer.task.streams else evaluation.DEPTHS)
    if (radius := trainer.radius()) is not None:
        result["spectral_radius"] = radius
    if trainer.accelerator.is_main_process:
        checkpoint.save_weights(folder.weights, trainer.model)
        files.write_json(folder.evaluation, result)
    statuses = result["forward"]["status"]
    if statuses is not None and statuses["CONVERGED"] < 0.99:
        ended = ", ".join(
            f"{100 * share:.1f} % {name}" for name, share in statuses.items() if share
        )
        console.print(
            f"Not all test samples converged: {ended}. See: equilibria doctor {folder.path}",
            style="yellow",
            markup=False,
        )


@contextmanager
def _signals(catch: bool) -> Iterator[list[int]]:
    """Collect the first interrupt or termination instead of dying of it; a second one kills.

    Several processes are not stopped in the same step, so there the launcher's signals kill, and
    a resume starts from the last checkpoint.
    """
    received: list[int] = []
    if not catch or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, receive) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
