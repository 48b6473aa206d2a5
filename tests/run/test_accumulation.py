"""Loss and gradient are means over all units of a step, however unequally they are shared out."""

import pytest
import torch
from test_new_task import RECIPE, Motion, MotionConfig

from equilibria.run import models, tasks
from equilibria.run.start import TrainingError
from equilibria.run.step import Diverged
from equilibria.run.tasks import Batch, Part
from several import TIGHT, several, trainer_of

PLAIN = {
    **TIGHT,
    "optimizer": {"name": "SGD", "lr": 0.5, "momentum": 0.0},
    "regularizer": None,
    "pretrain": None,
}


SLOW = {"name": "SGD", "lr": 0.02, "momentum": 0.0}


def mask(trainer):
    """Let the rows of a batch ask for numbers of tokens that differ."""
    whole = trainer.feed.batch

    def masked(step, part):
        batch = whole(step, Part())
        targets = batch.targets.clone()
        for row in range(len(targets)):
            targets[row, 3 * row + 1 :] = -1
        rows = part.of(len(targets))
        return Batch(batch.inputs[rows], targets[rows], batch.begins)

    trainer.feed.batch = masked


def test_micro_batches_of_unequal_units_give_the_gradient_of_the_whole(make, language, weights):
    language["model"] = {"name": "deq-trellisnet", "width": 8, "hidden": 6, "scale": 0.3}
    language["model"]["embedding_initial"] = 0.5
    language |= PLAIN | {
        "batch_size": 4,
        "optimizer": SLOW,
        "correction": {"name": "FixedPointCorrection"},
    }
    found, told = {}, {}
    for accumulate in (1, 3, 4):
        options = ("--accumulate", str(accumulate))
        trainer, _ = make(f"run{accumulate}", *options, tree=language)
        mask(trainer)
        before = weights(trainer)
        for _ in range(2):  # the second with what the first carried over
            trainer.train_step()
        found[accumulate] = {k: v - before[k] for k, v in weights(trainer).items()}
        told[accumulate] = trainer.tally.summary(trainer.task)["loss"], trainer.tally.units
    size = max(float(change.abs().max()) for change in found[1].values())
    for count in (3, 4):
        assert told[1][1] == told[count][1] == 2 * (1 + 4 + 7 + 10)
        assert told[count][0] == pytest.approx(told[1][0], rel=1e-5)
        for name, change in found[count].items():
            torch.testing.assert_close(change, found[1][name], rtol=1e-3, atol=1e-4 * size)


def test_more_micro_batches_than_rows_are_refused(make):
    with pytest.raises(TrainingError, match="accumulate is 300, more than the 256 rows"):
        make("run", "--accumulate", "300")


def work(rank, place, count):
    """Take three steps, each process in as many micro-batches as there are processes; diverge."""
    tasks.register("motion", Motion)
    models.register("motion-deq", MotionConfig)
    trainer = trainer_of(RECIPE | PLAIN | {"accumulate": count})
    batches = [trainer.batch(k) for k in range(count)]
    units = sum(trainer.task.units(batch.targets) for batch in batches)
    for _ in range(3):
        trainer.train_step()
    result = {"weights": dict(trainer.model.state_dict()), "test": trainer.evaluate("test")}
    torch.save({"units": units, **result}, place / f"{count}-{rank}.pt")
    if count > 1:
        loss = trainer.task.loss
        if rank:
            trainer.task.loss = lambda *given: loss(*given) * float("nan")
        with pytest.raises(Diverged, match="the loss is nan at step 4"):
            trainer.train_step()


def test_processes_with_unequal_units_take_the_steps_of_one_and_diverge_together(tmp_path):
    """The figures of the test data are the same too, a confusion matrix among what they add up.

    A loss that is not finite on one process ends all of them: none waits for another in backward.
    """
    found = {}
    for count in (1, 2):  # processes, and micro-batches of each
        several(work, count, tmp_path, count)
        found[count] = [
            torch.load(tmp_path / f"{count}-{rank}.pt", weights_only=False) for rank in range(count)
        ]
    (alone,), (one, other) = found[1], found[2]
    assert one["units"] != other["units"] and one["units"] + other["units"] == alone["units"]
    for name, value in alone["weights"].items():
        torch.testing.assert_close(one["weights"][name], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(one["weights"][name], other["weights"][name])
    for name in ("pixels", "loss", "rmse", "downward"):
        assert one["test"][name] == other["test"][name]
        assert one["test"][name] == pytest.approx(alone["test"][name], rel=1e-3)
