"""Losses of what a model reads from single resolutions: added in training, and nowhere else."""

import pytest
import torch
from accelerate import Accelerator
from torch.nn import functional

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.trainer import Trainer

TREE = {
    "task": {"name": "image_classification", "data": "digits", "auxiliary": 0.5},
    "model": {
        "name": "mdeq",
        "channels": [4, 4],
        "head_channels": [2, 2],
        "final": 4,
        "expansion": 2,
        "groups": 2,
        "auxiliary": True,
    },
    "batch_size": 16,
}


@pytest.fixture
def trainer():
    recipe = recipes.parse(TREE)
    return Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))


def test_the_loss_of_training_has_the_mean_of_the_parts(trainer):
    images, targets, *_ = trainer.task.sample("train", 16)
    prediction = trainer.model.train()(images)
    total = evaluation.loss_of(
        trainer.model, trainer.task, prediction, targets, trainer.accelerator
    )
    parts = [
        functional.cross_entropy(part, targets, reduction="sum") for part in prediction.auxiliary
    ]
    own = functional.cross_entropy(prediction.output, targets, reduction="sum")
    assert len(parts) == 2
    torch.testing.assert_close(total, own + 0.5 * (parts[0] + parts[1]) / 2)


def test_evaluation_has_the_loss_of_the_answer_alone(trainer):
    images, targets, *_ = trainer.task.sample("test", 450)
    found = evaluation.evaluate(trainer.model, trainer.task, trainer.accelerator)
    with torch.no_grad():
        output = trainer.model.eval()(images).output
    assert found["loss"] == pytest.approx(float(functional.cross_entropy(output, targets)))


def test_a_step_trains_the_heads(trainer):
    heads = {k: v.clone() for k, v in trainer.model.state_dict().items() if "auxiliary" in k}
    assert len(heads) == 4
    for _ in range(2):  # the first has the learning rate 0 where there is a warm-up
        trainer.train_step()
    after = trainer.model.state_dict()
    assert all(not torch.equal(after[key], value) for key, value in heads.items())


def test_the_loss_that_is_shown_of_training_is_that_of_the_answer_too(trainer):
    seen = []
    whole = trainer.task.sums

    def sums(model, output, targets):
        seen.append(float(functional.cross_entropy(output, targets)))
        return whole(model, output, targets)

    trainer.task.sums = sums  # type: ignore[method-assign]
    trainer.train_step()
    shown = trainer.tally.summary(trainer.task)["loss"]
    assert seen and shown == pytest.approx(sum(seen) / len(seen), rel=1e-5)
