"""mdeq-images as it is on three small data sets, beside simpler classifiers.

Test images; the ResNet is trained for as long. Minutes: all steps, on a busy machine.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from accelerate import Accelerator

from equilibria.run import evaluation, processes
from equilibria.run import recipe as recipes
from equilibria.run.models import Model
from equilibria.run.optimizer import AdamW
from equilibria.run.recipe import Recipe
from equilibria.run.run import Run
from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Chart, Lines, Pivot, first, mean, number, spread
from equilibria.run.trainer import Trainer
from equilibria.run.trees import to_device
from equilibria.zoo.vision.model.explicit import ResNetConfig
from equilibria.zoo.vision.task.own_images import OwnImages

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


# --- The study ------------------------------------------------------------------------------------


IMAGES = {"digits": ("digits", 500), "mnist": ("MNIST", 500), "cifar10": ("CIFAR-10", 1_000)}
SET = {name: f"{title}, {count:,} images" for name, (title, count) in IMAGES.items()}


def beside(context: Context) -> dict[str, Any]:
    """Simpler classifiers, and what the recipe has chosen from the data."""
    run, task = context.run.load(), cast(OwnImages, context.run.recipe.task)
    network = compare(run, "test")
    return {
        "linear": evaluation.reference(run.data, context.run.folder, "test")["accuracy"],
        **{f"resnet_{name}": network[name] for name in ("accuracy", "seconds", "epochs")},
        "chosen": f"{task.size} pixels, {'' if task.flip else 'not '}mirrored, shift {task.shift}",
        "passes": run.metrics[-1]["step"] * run.recipe.rows / (task.samples or 1),
    }


def training(data: str, seed: int) -> Training:
    words = f"--task.data {data} --task.samples {IMAGES[data][1]} --task.valid 200 --seed {seed}"
    return Training(recipes.load("mdeq-images", words.split()), 3)


VALUES = {
    "seeds": number("accuracy"),
    "MDEQ, %": spread("accuracy", 100, ".1f"),
    "logistic regression, %": first("linear", 100),
    "ResNet of equal time, %": spread("resnet_accuracy", 100, ".1f"),
    "converged, %": mean("converged", 100),
    "passes": first("passes"),
    "of the ResNet": mean("resnet_epochs"),
    "minutes": mean("seconds", 1 / 60),
    "chosen from the images": "chosen",
}
CURVES = Lines("epoch", "valid_accuracy", by=["data"], label=SET, scale=100)
STUDY = Study(
    paper="",
    title="One's own images",
    points=lambda scale: [  # seed by seed: an early stop leaves all data sets, with fewer seeds
        Point(each, [summary, beside, epochs], {"run": training(**each)})
        for each in grid(seed=(0, 1, 2), data=IMAGES)
    ],
    views=[
        Pivot(title="mdeq-images", index={"data": "images"}, words={"data": SET}, values=VALUES),
        Chart(title="Images set aside", x="epoch", y="accuracy, %", marks=CURVES, whole_x=True),
    ],
)
