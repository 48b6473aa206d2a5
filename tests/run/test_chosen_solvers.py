"""A solver by its name, or one that was learned, in place of a network's own."""

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

import equilibria as eq
from equilibria.run import neural
from equilibria.run.plugins import SOLVERS, change_solver
from equilibria.run.tasks.feed import Batch


def test_another_method_has_the_same_limits():
    limits = {
        "rtol": 1e-2,
        "atol": 1e-5,
        "error": 0.1,
        "max_evals": 7,
        "patience": None,
        "per_row": True,
    }
    own = eq.Anderson(period=3, history=4, **limits)
    assert own.limits == limits
    for name in SOLVERS:
        other = change_solver(own, name)
        assert type(other).__name__ == name and other.limits == limits
    assert change_solver(own, "Picard", rtol=1e-3) == eq.Picard(**{**limits, "rtol": 1e-3})
    assert change_solver(own) == own == change_solver(own, "Anderson")


# --- the learned solver of a run ------------------------------------------------------------------


class Elsewhere(nn.Module):
    """Looks like a model, on a device that is not the data's, and has no numbers."""

    def __init__(self):
        super().__init__()
        self.deq = nn.Linear(4, 4, device="meta")

    def forward(self, inputs, carry):
        assert carry is None or carry.device.type == "meta"
        return SimpleNamespace(carry=self.deq(inputs["x"]))


class Stream:
    streams = True

    def batches(self, split, batch_size):
        return [Batch({"x": torch.ones(batch_size, 4)}, None, begins=not k) for k in range(3)]


def test_inputs_are_collected_where_the_model_is():
    found = neural.inputs_of(
        cast(Any, Elsewhere()), cast(Any, Stream()), batches=2, batch_size=5, seed=0, other=True
    )
    assert [[(x.device.type, x.shape) for x in inputs] for inputs in found] == 2 * [
        [("meta", (5, 4))]
    ]
