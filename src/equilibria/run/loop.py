"""The training loop: trains a recipe into a run folder, or resumes a run."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console

from equilibria import files
from equilibria.precision import too_fine
from equilibria.run import evaluation, stops
from equilibria.run import folder as folders
from equilibria.run import recipe as recipes
from equilibria.run.config import as_chosen
from equilibria.run.folder import Folder, RunError, absolute
from equilibria.run.loggers import JsonLines, Logger, TensorBoard, Terminal
from equilibria.run.processes import agree, any_of, reachable, share_errors
from equilibria.run.recipe import Recipe
from equilibria.run.resume import restore, save
from equilibria.run.run import describe, segment
from equilibria.run.step import Diverged
from equilibria.run.tasks import Task
from equilibria.run.trainer import Probe, Trainer
from equilibria.run.weights import write_weights
from equilibria.solve import SolveWarning
from equilibria.words import percent, plural, printable

Stop = Callable[[], bool]
"""Called after each step: whether to save and stop there, as on a signal."""


class Interrupted(RuntimeError):
    """Training was stopped and saved, and can be resumed; the message says how."""

    exit_status = stops.STOPPED


def train(
    recipe: Recipe,
    path: str | Path,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    device: str | None = None,
    console: Console | None = None,
    probe: Probe | None = None,
    stop: Stop = lambda: False,
    command: Sequence[str] = (),
) -> None:
    """Train a recipe and write the run to the folder `path`.

    Under `torchrun` or `accelerate launch`, all processes call this; the first one writes.

    Args:
        recipe: what to train.
        path: the run folder, which must not exist yet; with `resume`, a run of this recipe.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.
        resume: continue from the newest intact checkpoint in the folder, or from the start if there
            is none yet; a finished run is left unchanged. The recipe may have a further segment
            (`Recipe.extend_by`).
        device: where to train; None for the GPU, if there is one.
        console: where to write; None for standard output.
        probe: takes additional measurements after each epoch.
        stop: whether to stop, asked after each step.
        command: words of the command line that starts the run, for run.json.

    Raises:
        RunError: the folder exists, has another writer, or cannot be resumed with this recipe.
        CheckpointError: all checkpoints are damaged.
        TrainingError: the loss is no longer finite.
        ODEError: a neural ODE can no longer be integrated.
        Interrupted: a signal or `stop` ended the run; it was saved.
        PeerLost: another process exited.
        Elsewhere: another process failed.
    """
    folder = Folder(Path(path))
    if resume:
        folder.read_recipe()  # fails, before any data are read, if this is not a run
    else:
        folder.check_free()
    accelerator = evaluation.accelerator(recipe.precision, device)
    console = (console or Console()) if accelerator.is_main_process else Console(quiet=True)
    with ExitStack() as stack:
        signals = stack.enter_context(stops.catch(tell=accelerator.is_main_process))
        stack.enter_context(_explain_stop(folder))
        with agree(accelerator):
            if accelerator.is_main_process:
                stack.enter_context(folder.write_alone(resume=resume))
        stack.enter_context(share_errors(accelerator))
        stack.enter_context(reachable(accelerator, f"; resume with: {folder.resume}"))
        recipe = replace(recipe, task=folders.locate(folder, absolute(recipe.task), data_dir))
        if recipe.init_from is not None:
            recipe = replace(recipe, init_from=str(Path(recipe.init_from).expanduser().absolute()))
        task = _task(recipe, accelerator, data_dir)
        with as_chosen():
            asked, recipe = recipe, recipes.settle(recipe, task)
        if resume:
            folder.check_same(recipe)
        if chosen := recipes.list_chosen(asked, recipe):
            said = f"Chosen for {task.source}: {', '.join(chosen)}"
            _say(console, said)
        fresh = not (resume and folder.checkpoints.all())
        begins = recipe.initialization
        if fresh and begins is not None and begins.radius is not None:
            _say(
                console,
                f"Searching for the scale of the recurrent weights that gives a spectral radius of "
                f"{begins.radius:g} on the first batch ...",
            )
        with as_chosen():
            trainer = Trainer(recipe, task, accelerator, probe=probe, fresh=fresh)
        if accelerator.is_main_process and not resume:
            folder.create(recipe)
        _announce(trainer, console)
        fit(trainer, folder, console, resume=resume, stop=stop, command=command, signals=signals)
        accelerator.wait_for_everyone()
    accelerator.end_training()


def _announce(trainer: Trainer, console: Console) -> None:
    """Say what is trained, on what."""
    recipe, task, accelerator = trainer.recipe, trainer.task, trainer.accelerator
    count = trainer.model.count_parameters()["parameters"]
    _say(
        console,
        f"{recipe.model.title}, {count:,} parameters, on "
        f"{task.source or 'its own data'}{f' ({task.notes})' if task.notes else ''}, "
        f"{plural(recipe.epochs, 'epoch')} of "
        f"{plural(trainer.steps_per_epoch, 'step')} on "
        f"{accelerator.num_processes} x {accelerator.device.type}",
    )
    if trainer.reuse is not None:
        _say(
            console,
            f"Reuse: the states of {trainer.reuse.cache.samples:,} samples are kept from step "
            f"to step, {trainer.reuse.bytes / 1e6:,.1f} MB",
        )


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as it is: no markup, no colours, no line breaks."""
    console.print(text, style=style, soft_wrap=True, markup=False, highlight=False)


def _task(recipe: Recipe, accelerator: Accelerator, data_dir: Path | None) -> Task:
    """Read the data, first on the main process, which downloads what is missing."""
    task = None
    for first in (True, False):
        with agree(accelerator), as_chosen():
            if accelerator.is_main_process is first:
                task = recipe.task.load(data_dir)
    assert task is not None
    return task


def fit(
    trainer: Trainer,
    folder: Folder,
    console: Console,
    *,
    resume: bool = False,
    stop: Stop = lambda: False,
    command: Sequence[str] = (),
    signals: stops.Signals | None = None,
) -> None:
    """Train to the recipe's last epoch and evaluate; see `train`."""
    with closing(trainer.background):
        accelerator, recipe = trainer.accelerator, trainer.recipe
        if resume:
            _restore(trainer, folder)
            _say_where(trainer, folder, console)
        written: list[Logger] = []
        if accelerator.is_main_process:
            written = [JsonLines(folder, trainer.records)]
        if resume and trainer.step == trainer.steps and folders.is_concluded(folder, trainer.step):
            weights = trainer.layout.whole_state()
            if accelerator.is_main_process and not folders.has_weights(folder, trainer.model):
                write_weights(folder.weights, weights)
                _say(console, f"{folder.weights} is restored from the checkpoint")
            _say(
                console,
                f"{folder.path} is finished: there is nothing to resume. To train on, add "
                "--extend EPOCHS",
            )
            return
        if accelerator.is_main_process:
            _record(trainer, folder, console, command)
        with ExitStack() as stack:
            terminal = Terminal(console, recipe.epochs, trainer.steps_per_epoch, trainer.task)
            if accelerator.is_main_process:
                written.append(TensorBoard(folder, trainer.step))
            loggers: list[Logger] = [*written, terminal]
            for logger in loggers:
                stack.callback(logger.close)
            signals = signals or stack.enter_context(stops.catch(tell=accelerator.is_main_process))
            stack.enter_context(signals.defer())
            # Fractions of failed solves are logged; a warning at each step would drown them out.
            stack.enter_context(warnings.catch_warnings(action="ignore", category=SolveWarning))
            while trainer.step < trainer.steps:
                _step(trainer, folder)
                epoch, position = divmod(trainer.step, trainer.steps_per_epoch)
                record = None
                if position:
                    terminal.step(epoch + 1, position, trainer.tally, trainer.seconds)
                else:
                    record = trainer.finish_epoch()
                ends = any_of(accelerator, bool(signals.received) or stop())
                every = recipe.checkpoint.every
                due = every is not None and trainer.step % every == 0
                if record or ends or due:
                    save(trainer, folder)
                if record:
                    for logger in loggers:
                        logger.epoch(record)
                if ends:
                    trainer.background.settle()
                    where = f"in epoch {epoch + 1} " if trainer.step < trainer.steps else ""
                    raise Interrupted(
                        f"stopped {where}after step {trainer.step} of {trainer.steps}; the run is "
                        f"saved; continue with: {folder.resume}"
                    )
            trainer.background.settle()
        with _explain_stop(folder):
            conclude(trainer, folder, console)


@contextmanager
def _explain_stop(folder: Folder) -> Iterator[None]:
    """Say how to continue after a signal that arrived outside a training step."""
    try:
        yield
    except stops.Stopped as stopped:
        if folder.saved:
            raise Interrupted(
                f"stopped by {stopped}; all training so far is saved; continue with: "
                f"{folder.resume}"
            ) from None
        raise KeyboardInterrupt from None


def _restore(trainer: Trainer, folder: Folder) -> None:
    """Restore the newest intact checkpoint, the same one on all processes."""
    accelerator, recipe = trainer.accelerator, trainer.recipe
    main = accelerator.is_main_process

    def warn(text: str) -> None:
        if main:  # under --quiet too
            print(printable(f"warning: {text}"), file=sys.stderr)

    with agree(accelerator):
        found = restore(trainer, folder, warn)
    steps = gather_object([trainer.step])
    if len(set(steps)) > 1:
        raise RunError(
            f"processes read different checkpoints in {folder.checkpoints.path} (steps "
            f"{', '.join(map(str, steps))}): try again once all of them can read the newest"
        )
    if main and found is not None:
        found.set_aside()
    known = folder.read_recipe()
    if recipe.epochs > known.epochs and trainer.step < known.epochs * trainer.steps_per_epoch:
        raise RunError(
            f"{folder.path} has not finished its {known.epochs} epochs yet: first continue it "
            f"with {folder.resume}, then extend it"
        )


def _step(trainer: Trainer, folder: Folder) -> None:
    """Take a step; if it diverges, name the last checkpoint."""
    try:
        trainer.train_step()
    except Diverged as error:
        trainer.background.settle()
        saved = folder.checkpoints.all()
        left = f"The last good checkpoint is {saved[0]}" if saved else "Nothing was saved yet"
        raise Diverged(f"{error}. {left}") from None


def _say_where(trainer: Trainer, folder: Folder, console: Console) -> None:
    """Say where a run continues, and what restarts if a new segment begins there."""
    recipe = trainer.recipe
    if trainer.step == 0:
        _say(console, f"{folder.path} has no checkpoint yet: it starts from the beginning")
    elif trainer.step < trainer.steps:
        _say(console, f"Continuing after step {trainer.step} of {trainer.steps}")
        for note in trainer.notes:
            _say(console, note)
    begin, _ = recipe.segment(trainer.step, trainer.steps_per_epoch)
    if begin and begin == trainer.step < trainer.steps:
        again = [f"the learning rate's {type(recipe.schedule).__name__} schedule"]
        if recipe.regularizer is not None:
            again.append("the regulariser's ramp")
        _say(console, f"New segment, to epoch {recipe.epochs}: restarting {' and '.join(again)}")


def _record(trainer: Trainer, folder: Folder, console: Console, command: Sequence[str]) -> None:
    """Write run.json and everything else that is known before the first step."""
    recipe, accelerator = trainer.recipe, trainer.accelerator
    if trainer.step == 0 or not folder.info.exists():
        about = describe(trainer.model, trainer.task, accelerator)
        known = folder.read_info() if folder.info.exists() else {}
        about |= {"command": known.get("command", []), "segments": []}
        start = trainer.start
        if start.beginning is not None:
            _say(console, f"Recurrent weights: {start.beginning}")
            about["initialisation"] = start.beginning.json()
        if start.transfer is not None:
            _say(console, str(start.transfer))
            about["init_from"] = start.transfer.json()
        trainer.task.save(folder.path)
    else:
        about = folder.read_info()
    if command:
        about["command"] = list(command)
    about["place"] = folders.place_within(folder, recipe.task)
    about["segments"] = [
        *about.get("segments", ()),
        segment(trainer.step, recipe.epochs, accelerator),
    ]
    files.write_json(folder.info, about)
    folder.update(recipe)


def conclude(trainer: Trainer, folder: Folder, console: Console) -> None:
    """Write the weights and evaluation.json; warn if samples did not converge."""
    depths = () if trainer.task.streams else evaluation.DEPTHS
    result = trainer.evaluate("test", depths, record=True)
    if (radius := trainer.radius()) is not None:
        result["spectral_radius"] = radius
    result["step"] = trainer.step
    weights = trainer.layout.whole_state()
    if trainer.accelerator.is_main_process:
        write_weights(folder.weights, weights)
        files.write_json(folder.evaluation, result)
    statuses = result["forward"]["status"]
    if statuses is not None and statuses["CONVERGED"] < 0.99:
        ended = ", ".join(f"{percent(share)} {name}" for name, share in statuses.items() if share)
        solver, precision = trainer.recipe.solver, trainer.recipe.precision
        advice = (solver and too_fine(precision, solver.finest, statuses)) or ()
        _say(
            console,
            " ".join(
                (
                    f"Not all test samples converged: {ended}.",
                    *advice,
                    f"See: equilibria doctor {folder.path}",
                )
            ),
            style="yellow",
        )
