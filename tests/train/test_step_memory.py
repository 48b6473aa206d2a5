"""Memory of a training step: what is measured, and that a DEQ's does not grow with depth."""

import pytest
import torch

from equilibria import models
from equilibria.solve import GMRES, Anderson, Implicit
from equilibria.tasks import Batch, ImageClassification
from equilibria.train import recipe as recipes
from equilibria.train.memory import measure, peak_bytes


def test_the_peak_is_counted_not_the_sum():
    def step():
        a = torch.empty(1000)
        del a
        b = torch.empty(500)
        c = torch.empty(700)
        return b, c

    assert peak_bytes(step) == pytest.approx(4 * 1200, abs=256)


def test_a_deq_does_not_grow_and_the_unrolled_cell_does():
    torch.manual_seed(0)
    model = models.create(
        "dense",
        width=64,
        solver=Anderson(history=3),
        adjoint=Implicit(linear=GMRES(rtol=0.0, max_evals=10, restart=10)),
    )
    inputs, targets = torch.randn(32, 1, 8, 8), torch.zeros(32, dtype=torch.int64)
    task = ImageClassification(data="digits").load()
    points = measure(model, task, Batch(inputs, targets), depths=(5, 20, 80))
    size = {(point.kind, point.evals): point.bytes for point in points}
    assert size["deq", 80] == pytest.approx(size["deq", 5], rel=0.02)
    growth = size["unrolled", 80] - size["unrolled", 20]
    assert growth == pytest.approx(4 * (size["unrolled", 20] - size["unrolled", 5]), rel=0.1)
    assert growth >= 60 * 32 * 64 * 4  # at least the state of each evaluation

    def by_hand():
        weight = model.deq.cell.linear.weight
        (u,) = model.inject(inputs)
        z = torch.zeros_like(u)
        for _ in range(80):
            z = torch.tanh(torch.nn.functional.linear(z, weight) + u)
        task.loss(model, model.readout(z), targets).backward()

    by_hand()  # the gradients are there before the measurement
    assert size["unrolled", 80] == pytest.approx(peak_bytes(by_hand), rel=0.2)
    for point in points:
        expected = 12 * 32 * 64 * 4 if point.kind == "deq" else 0
        assert point.history_bytes == expected


def test_of_a_language_model_the_body_is_measured(language):
    """Neither the vocabulary nor the softmax is in it, and what was carried over is."""
    task = recipes.parse(language).task.load()
    batch = task.feed(4, 0).batch(0)
    sizes = {}
    for vocabulary, memory in ((20, 8), (5000, 8), (20, 0)):
        torch.manual_seed(0)
        model = models.create(
            "deq-transformer",
            vocabulary=vocabulary,
            width=16,
            heads=2,
            inner=24,
            memory=memory,
            subsequence=7,
            solver=Anderson(history=3),
            adjoint=Implicit(linear=GMRES(rtol=0.0, max_evals=4, restart=4)),
        )
        points = measure(model, task, batch, depths=(3, 9))
        sizes[vocabulary, memory] = {(p.kind, p.evals): p.bytes for p in points}
        assert next(p for p in points if p.kind == "deq").history_bytes == 12 * 4 * 7 * 16 * 4
    plain, wide, forgetful = sizes.values()
    assert wide == pytest.approx(plain, rel=0.01)
    assert forgetful["deq", 9] < plain["deq", 9]
    assert plain["unrolled", 9] > 2 * plain["unrolled", 3] > plain["deq", 3]
    assert plain["deq", 9] == pytest.approx(plain["deq", 3], rel=0.1)
