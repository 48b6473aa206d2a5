"""Whether a network tells the samples of an examination apart, up to chance."""

import pytest
import torch
from torch.nn import functional

from equilibria.run import examination
from equilibria.run.models import Prediction
from equilibria.run.tasks.base import LabeledTask


class Labeled(LabeledTask):
    """Three classes, whose samples are never looked at."""

    def complete(self, config):
        return config


def chance(targets, answers):
    """The accuracy of the answers, and the best one of exchanged answers."""
    task = Labeled({}, "sha256:0")
    logits = 5.0 * functional.one_hot(answers, 3)
    answer = examination._answer(task, None, Prediction(logits, ()), targets)
    return answer.figures["accuracy"], examination._chance(answer, task.primary)


IN_ORDER = torch.arange(21) // 7
IN_TURN = torch.arange(21) % 3
FEW = torch.tensor([0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize("targets", [IN_ORDER, IN_TURN, FEW], ids=["in order", "in turn", "few"])
def test_a_classifier_that_is_always_right_is_better_than_chance(targets):
    accuracy, best = chance(targets, targets)
    assert best is not None and best < accuracy == 1.0


def test_of_samples_of_one_class_nothing_is_said():
    assert chance(torch.ones(30, dtype=torch.int64), torch.ones(30, dtype=torch.int64))[1] is None


def test_answers_that_know_nothing_of_the_samples_are_no_better_than_chance():
    draw = torch.Generator().manual_seed(0)
    for answers in (torch.zeros(21, dtype=torch.int64), torch.randint(3, (21,), generator=draw)):
        accuracy, best = chance(IN_ORDER, answers)
        assert accuracy <= best
    mostly = torch.cat([torch.zeros(40, dtype=torch.int64), torch.ones(10, dtype=torch.int64)])
    accuracy, best = chance(mostly, torch.zeros_like(mostly))
    assert accuracy == best == 0.8  # the larger class, told for all


def test_a_classifier_that_is_often_right_is_better_than_chance():
    answers = IN_ORDER.clone()
    answers[::3] = (answers[::3] + 1) % 3
    accuracy, best = chance(IN_ORDER, answers)
    assert accuracy > best
