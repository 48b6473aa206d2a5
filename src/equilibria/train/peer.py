"""An explicit network, trained as long as a run, on the same data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator

from equilibria.models import Model
from equilibria.tasks import Task
from equilibria.train import evaluation, files, randomness
from equilibria.train.evaluation import to_device
from equilibria.train.folder import Folder
from equilibria.train.optimiser import AdamW
from equilibria.train.recipe import Recipe
from equilibria.train.run import Run, parameters
from equilibria.train.trainer import Trainer

__all__ = ["NAME", "compared", "cost", "trained"]

NAME = "residual network of equal training time"

Progress = Callable[[float, float], object]
"""Called with the seconds that a training has taken and is to take."""

OPTIMISER = AdamW(lr=5e-3, weight_decay=0.02)
"""Of the peer, whatever the recipe's is: another network wants another learning rate."""

TIMED = 9
"""Steps of each kind by which a run is timed."""


def compared(
    loaded: Run, split: str, accelerator: Accelerator, progress: Progress = lambda done, of: None
) -> dict[str, Any]:
    """Return the figures on a split of the network that a run's task names as its peer.

    Equal time is what all steps of the run would take here and now, not what they took: it may have
    been trained on another machine, or on one that did other things too. The figures are cached in
    the run folder, of all splits; the network itself is not kept.

    Args:
        loaded: the run, on its own data.
        split: one of the task's.
        accelerator: gives the device.
        progress: told how far the training is.
    """
    folder, task = Folder(loaded.folder), loaded.data
    key = {"data": task.checksum, "step": loaded.metrics[-1]["step"] if loaded.metrics else 0}
    known: dict[str, Any] = {}
    if folder.peer.is_file():
        try:
            known = files.from_json(folder.peer.read_text("utf-8"))
        except ValueError:
            known = {}  # it is recreated
    if {name: known.get(name) for name in key} != key:
        state = randomness.random_state()
        model, about = trained(
            loaded.recipe, task, accelerator, lambda: cost(loaded, accelerator), progress
        )
        randomness.set_random_state(state)
        size = loaded.recipe.eval_batch_size
        figures = {
            each: evaluation.evaluate(model, task, accelerator, split=each, batch_size=size)
            for each in task.splits
        }
        known = {
            **key,
            **about,
            "parameters": parameters(model),
            "splits": {
                each: {k: v for k, v in found.items() if isinstance(v, float)}
                for each, found in figures.items()
            },
        }
        files.write_json(folder.peer, known)
    about = {name: known[name] for name in ("seconds", "epochs", "parameters")}
    return {"name": NAME, **about, **known["splits"][split]}


def cost(loaded: Run, accelerator: Accelerator) -> float:
    """Return the seconds that all steps of a run would take now, from a few of each kind.

    The model is left as it is, and the state of random generators is preserved.
    """
    state = randomness.random_state()
    trainer = Trainer(loaded.recipe, loaded.data, accelerator, fresh=False)
    trainer.model.load_state_dict(loaded.model.state_dict())
    shallow = trainer.shallow_steps
    total = 0.0
    # Those that solve first: they are timed with the weights of the run's end.
    for begin, steps in ((shallow, trainer.steps - shallow), (0, shallow)):
        seconds: list[float] = []
        for _ in range(min(steps, TIMED)):
            trainer.step, before = begin + steps - 1, trainer.seconds
            trainer.train_step()
            seconds.append(trainer.seconds - before)
        total += steps * statistics.median(seconds) if seconds else 0.0
    randomness.set_random_state(state)
    return total


def trained(
    recipe: Recipe,
    task: Task,
    accelerator: Accelerator,
    seconds: Callable[[], float],
    progress: Progress = lambda done, of: None,
) -> tuple[Model, dict[str, float]]:
    """Train the peer of a task for so many seconds of steps.

    Batches, their order, augmentation, loss and clipping are those of the recipe, the optimiser is
    `OPTIMISER`. The recipe's schedule of the learning rate runs over the time, not over a number of
    steps, which is not known before. The clock is a run's: it counts the steps alone.

    Args:
        recipe: of the run.
        task: its data; it has a peer.
        accelerator: gives the device.
        seconds: tells how long to train; asked at the start and half-way, since a machine may get
            slower or faster, and the mean counts.
        progress: told how far the training is, about once a second.

    Returns:
        The network, in evaluation mode; its `seconds`, and as `epochs` the passes over the data.
    """
    assert task.peer is not None
    asked = [seconds()]
    randomness.seed_all(recipe.seed)
    model = task.model(task.peer).to(accelerator.device).train()
    optimiser = OPTIMISER.build(model)
    feed = task.feed(recipe.rows, recipe.seed)
    step, taken, told = 0, 0.0, 0.0
    while taken < (limit := statistics.mean(asked)):
        if len(asked) == 1 and taken >= limit / 2:
            asked.append(seconds())
            continue
        start = time.perf_counter()
        # In thousandths of the run: a schedule is a function of whole steps.
        rate = OPTIMISER.lr * recipe.schedule.factor(int(1000 * taken / limit), 1000)
        for group in optimiser.param_groups:
            group["lr"] = rate
        batch = to_device(task.augment(feed.batch(step)), accelerator)
        prediction = model(batch.inputs)
        loss = task.loss(model, prediction.output, batch.targets) / task.units(batch.targets)
        optimiser.zero_grad()
        loss.backward()
        if recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.step()
        with torch.no_grad():
            model.constrain()
        step, taken = step + 1, taken + time.perf_counter() - start
        if taken - told >= 1.0:
            progress(taken, limit)
            told = taken
    return model.eval(), {"seconds": taken, "epochs": step / feed.steps}
