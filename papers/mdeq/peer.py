"""An explicit network, trained as long as a run, on the same data."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator

from equilibria.run import evaluation, processes
from equilibria.run.models import Model
from equilibria.run.optimizer import AdamW
from equilibria.run.recipe import Recipe
from equilibria.run.run import Run
from equilibria.run.trainer import Trainer
from equilibria.run.trees import to_device
from equilibria.zoo.vision.model.explicit import ResNetConfig

OPTIMIZER = AdamW(lr=5e-3, weight_decay=0.02)
"""Of the peer, whatever the recipe's is: another network wants another learning rate."""

TIMED = 9
"""Steps of each kind by which a run is timed."""


def compare(loaded: Run, split: str) -> dict[str, float]:
    """Return accuracy, seconds and epochs of a residual network of equal training time.

    Equal time is what all steps of the run would take here and now, not what they took: it may have
    been trained on another machine, or on one that did other things too.

    Args:
        loaded: a run on images, with its own data.
        split: one of the task's.
    """
    accelerator, task = evaluation.accelerator("float32", "cpu"), loaded.data
    state = processes.random_state()
    model, about = train(loaded.recipe, task, accelerator, lambda: cost(loaded, accelerator))
    processes.set_random_state(state)
    size = loaded.recipe.eval_batch_size
    figures = evaluation.evaluate(model, task, accelerator, split=split, batch_size=size)
    return {"accuracy": figures["accuracy"], **about}


def cost(loaded: Run, accelerator: Accelerator) -> float:
    """Return the seconds that all steps of a run would take now, from a few of each kind.

    The model is left as it is, and the state of random generators is preserved.
    """
    state = processes.random_state()
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
    processes.set_random_state(state)
    return total


def train(
    recipe: Recipe, task: Any, accelerator: Accelerator, seconds: Callable[[], float]
) -> tuple[Model, dict[str, float]]:
    """Train a residual network for so many seconds of steps.

    Batches, their order, augmentation, loss and clipping are those of the recipe, the optimiser is
    `OPTIMIZER`. The recipe's schedule of the learning rate runs over the time, not over a number of
    steps, which is not known before. The clock is a run's: it counts the steps alone.

    Args:
        recipe: of the run.
        task: its data, images in classes.
        accelerator: gives the device.
        seconds: tells how long to train; asked at the start and half-way, since a machine may get
            slower or faster, and the mean counts.

    Returns:
        The network, in evaluation mode; its `seconds`, and as `epochs` the passes over the data.
    """
    network = ResNetConfig(
        shape=task.shape, classes=task.classes, widths=(8, 16, 32), blocks=(2, 2, 2)
    )
    asked = [seconds()]
    processes.seed_all(recipe.seed)
    model = task.model(network).to(accelerator.device).train()
    optimizer = OPTIMIZER.build(model)
    feed = task.feed(recipe.rows, recipe.seed)
    step, taken = 0, 0.0
    while taken < (limit := statistics.mean(asked)):
        if len(asked) == 1 and taken >= limit / 2:
            asked.append(seconds())
            continue
        start = time.perf_counter()
        # In thousandths of the run: a schedule is a function of whole steps.
        rate = OPTIMIZER.lr * recipe.schedule.factor(int(1000 * taken / limit), 1000)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = to_device(task.augment(feed.batch(step)), accelerator.device)
        prediction = model(batch.inputs)
        loss = task.loss(model, prediction.output, batch.targets) / task.units(batch.targets)
        optimizer.zero_grad()
        loss.backward()
        if recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        with torch.no_grad():
            model.constrain()
        step, taken = step + 1, taken + time.perf_counter() - start
    return model.eval(), {"seconds": taken, "epochs": step / feed.steps}
