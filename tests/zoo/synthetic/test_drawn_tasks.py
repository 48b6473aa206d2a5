"""Tasks on sequences that are drawn."""

import pytest
import torch

from equilibria.nn.using import in_eval_mode
from equilibria.run.models import create
from equilibria.zoo.recurrent.model.classifier import RecurrentConfig
from equilibria.zoo.synthetic.task.drawn import AddingProblem, OrderProblem


class TestDrawnTasks:
    def test_each_step_has_sequences_of_its_own_and_the_same_ones_again(self):
        feed = AddingProblem(length=20, epoch=100).load().feed(10, seed=3)
        assert feed.steps == 10
        one, two, again = (feed.batch(step).inputs for step in (0, 1, 0))
        assert (one != two).any() and (one == again).all()
        other = AddingProblem(length=20, epoch=100).load().feed(10, seed=4).batch(0).inputs
        assert (one != other).any()

    def test_answering_with_the_mean_has_the_known_error(self):
        loaded = AddingProblem(length=30, test=4000).load()
        model = create("recurrent", shape=(2,), classes=1)
        with torch.no_grad(), in_eval_mode(model):
            model.head.weight.zero_()
            model.head.bias.fill_(1.0)
            sums = [
                loaded.loss(model, model(b.inputs).output, b.targets)
                for b in loaded.batches("test", 500)
            ]
        assert abs(sum(sums).item() / 4000 - 1 / 6) < 0.02

    def test_the_order_problem_is_balanced(self):
        targets = OrderProblem(length=20, test=2000).load().test.targets
        assert abs(targets.double().mean().item() - 0.5) < 0.05

    def test_channels_and_outputs_follow_from_the_task(self):
        config = AddingProblem(length=20).load().complete(RecurrentConfig())
        assert (config.shape, config.classes) == ((2,), 1)
        with pytest.raises(ValueError, match=r"model\.classes is 3, and adding problem"):
            AddingProblem(length=20).load().complete(RecurrentConfig(classes=3))
