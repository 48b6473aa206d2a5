"""Loss and gradient are means over all units of a step, however unequally they are shared out."""

import subprocess
import sys

import pytest
import torch
import yaml
from test_new_task import RECIPE

from equilibria.tasks import Batch, Part
from equilibria.train.trainer import TrainingError

TIGHT = {
    "solver": {"name": "Anderson", "rtol": 1e-6, "max_evals": 80},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-6}},
    "optimiser": {"name": "SGD", "lr": 0.5, "momentum": 0.0},
    "regulariser": None,
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


@pytest.mark.parametrize("count", [2, 3, 4])
def test_micro_batches_of_unequal_units_give_the_gradient_of_the_whole(
    make, language, weights, count
):
    language["model"] = {"name": "deq-trellisnet", "width": 8, "hidden": 6, "scale": 0.3}
    language["model"]["embedding_initial"] = 0.5
    language |= TIGHT | {
        "batch_size": 4,
        "optimiser": SLOW,
        "correction": {"name": "FixedPointCorrection"},
    }
    found, told = {}, {}
    for accumulate in (1, count):
        options = ("--accumulate", str(accumulate))
        trainer, _ = make(f"run{accumulate}", *options, tree=language)
        mask(trainer)
        before = weights(trainer)
        for _ in range(2):  # the second with what the first carried over
            trainer.train_step()
        found[accumulate] = {k: v - before[k] for k, v in weights(trainer).items()}
        told[accumulate] = trainer.tally.summary(trainer.task)["loss"], trainer.tally.units
    assert told[1][1] == told[count][1] == 2 * (1 + 4 + 7 + 10)
    assert told[count][0] == pytest.approx(told[1][0], rel=1e-5)
    size = max(float(change.abs().max()) for change in found[1].values())
    for name, change in found[count].items():
        torch.testing.assert_close(change, found[1][name], rtol=1e-3, atol=1e-4 * size)


def test_more_micro_batches_than_rows_are_refused(make):
    with pytest.raises(TrainingError, match="accumulate is 300, more than the 256 rows"):
        make("run", "--accumulate", "300")


PROGRAM = """
import os
import sys
import torch
from accelerate import Accelerator
sys.path.insert(0, sys.argv[1])
import test_new_task as new
from equilibria import models, tasks
from equilibria.train import recipe as recipes
from equilibria.train.trainer import Diverged, Trainer

tasks.register("motion", new.Motion)
models.register("motion-deq", new.MotionConfig)
recipe = recipes.load("motion.yaml")
accelerator = Accelerator(cpu=True)
trainer = Trainer(recipe, recipe.task.load(), accelerator)
batches = [trainer.batch(k) for k in range(recipe.accumulate)]
units = sum(trainer.task.units(batch.targets) for batch in batches)
for _ in range(3):
    trainer.train_step()
result = {"weights": dict(trainer.model.state_dict()), "test": trainer.evaluate("test")}
torch.save({"units": units, **result}, f"result-{accelerator.process_index}.pt")
if accelerator.num_processes > 1:
    loss = trainer.task.loss
    if accelerator.process_index:
        trainer.task.loss = lambda *given: loss(*given) * float("nan")
    try:
        trainer.train_step()
    except Diverged as error:
        print(f"process {accelerator.process_index}: {error}")
accelerator.end_training()
sys.stdout.flush()
os._exit(0)  # Gloo's threads may abort while the interpreter shuts down
"""


def test_processes_with_unequal_units_take_the_steps_of_one_and_diverge_together(tmp_path, request):
    """The figures of the test data are the same too, a confusion matrix among what they add up.

    A loss that is not finite on one process ends all of them: none waits for another in backward.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    found = {}
    for count in (1, 2):  # processes, and micro-batches of each
        recipe = RECIPE | TIGHT | {"accumulate": count}
        (tmp_path / "motion.yaml").write_text(yaml.safe_dump(recipe))
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
        command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint"]
        command += ["localhost:0", "program.py", str(request.path.parent)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found[count] = [
            torch.load(tmp_path / f"result-{process}.pt", weights_only=False)
            for process in range(count)
        ]
    (alone,), (one, other) = found[1], found[2]
    assert one["units"] != other["units"] and one["units"] + other["units"] == alone["units"]
    for name, value in alone["weights"].items():
        torch.testing.assert_close(one["weights"][name], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(one["weights"][name], other["weights"][name])
    for name in ("pixels", "loss", "rmse", "downward"):
        assert one["test"][name] == other["test"][name]
        assert one["test"][name] == pytest.approx(alone["test"][name], rel=1e-3)
    for process in (0, 1):
        assert f"process {process}: the loss is nan at step 4" in done.stdout
