"""Memory of a training step: what is measured, and that a DEQ's does not grow with depth."""

import pytest
import torch
from torch.nn import functional

from equilibria import models
from equilibria.solve import GMRES, Anderson, Implicit
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
    points = measure(model, inputs, targets, functional.cross_entropy, depths=(5, 20, 80))
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
            z = torch.tanh(functional.linear(z, weight) + u)
        functional.cross_entropy(model.readout(z), targets).backward()

    by_hand()  # the gradients are there before the measurement
    assert size["unrolled", 80] == pytest.approx(peak_bytes(by_hand), rel=0.2)
    for point in points:
        expected = 12 * 32 * 64 * 4 if point.kind == "deq" else 0
        assert point.history_bytes == expected
