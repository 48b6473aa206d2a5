"""Training on random parts of the path: on any equilibrium model, resumed and in micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_resume import EVERY, Killed, break_at, ended_alike, kill

import equilibria as eq
import small_models
from equilibria.nn.methods import chosen
from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.loop import fit
from equilibria.run.models import EquilibriumModel, config_of
from equilibria.run.path import PathHook, RandomPath

PATH = {"name": "RandomPath", "budget": [0, 6], "steps": 2, "noise": 0.5}


@pytest.mark.parametrize(("gradient", "accumulate"), [("phantom", 2), ("unrolled", 1)])
def test_it_is_resumed_bit_for_bit(tree, make, fitted, quiet, weights, gradient, accumulate):
    tree |= {"path": {**PATH, "gradient": gradient}, "accumulate": accumulate}
    trainer, there = fitted("whole", *EVERY, tree=tree)
    whole = weights(trainer), there
    trainer, folder = make("broken", *EVERY, tree=tree)
    break_at(trainer, 5, kill)
    with pytest.raises(Killed):
        fit(trainer, folder, quiet)
    trainer, folder = fitted("broken", *EVERY, new=False, tree=tree)
    ended_alike((weights(trainer), folder), whole)


class Alone(EquilibriumModel):
    """A model that is its layer, of one number a sample, from 0."""

    def __init__(self, f):
        super().__init__()
        self.calls = 0
        self.deq = eq.DEQ(self.count(f))
        assert self.deq.returns == "best"

    def count(self, f):
        def cell(z, x):
            self.calls += 1
            return f(z) + x

        return cell

    def inject(self, x):
        return (x,)

    def readout(self, z):
        return z


MAPS = {
    "counts": (lambda z: z + 1, lambda k: k),
    "counts, and its residual rises": (lambda z: -z - (z < 0).float().mul(-2).add(1), abs),
    "converges": (lambda z: z / 2 + 1, lambda k: 2 - 2 ** (1 - k)),
}
"""Maps, and the size of their k-th iterates."""


@pytest.mark.parametrize("evals", [0, 1, 2, 5, 17])
@pytest.mark.parametrize("gradient", ["phantom", "unrolled"])
@pytest.mark.parametrize("name", MAPS)
def test_the_answer_is_that_of_the_iterate_n_plus_steps(name, gradient, evals):
    f, iterate = MAPS[name]
    model, steps = Alone(f), 3
    hook = PathHook(RandomPath(budget=(evals, evals), steps=steps, gradient=gradient), model, 0)
    with hook.around(0):
        prediction = model(torch.zeros(2, 1, requires_grad=True))
    assert prediction.output.abs().tolist() == [[iterate(evals + steps)]] * 2
    assert prediction.output.requires_grad
    measured = 2 if gradient == "phantom" else 0  # at z_n and z_(n + steps)
    assert model.calls == evals + steps + measured
    assert prediction.solution.stats.evals.tolist() == [model.calls] * 2


@pytest.mark.parametrize(("gradient", "further"), [("phantom", 3), ("unrolled", 0)])
def test_losses_on_the_path_are_those_of_its_iterates(gradient, further):
    model = Alone(lambda z: z + 1)
    hook = PathHook(RandomPath(budget=(5, 5), steps=3, gradient=gradient), model, 0)
    with hook.around(0):
        prediction = model(torch.zeros(2, 1, requires_grad=True), states=(2, 4, 9))
    states = prediction.solution.states
    last = 8  # no state lies beyond the answer
    assert [state.tolist() for state in states] == [
        [[min(k + further, last)]] * 2 for k in (2, 4, 9)
    ]
    assert all(state.requires_grad for state in states)


def test_a_correction_on_a_path_adds_the_losses_of_its_states(make, tree, weights):
    tree |= {"path": {**PATH, "budget": [6, 6]}, "optimizer": {"name": "SGD", "lr": 0.5}}
    plain = step(make, weights, "plain", tree)
    tree["correction"] = {"name": "FixedPointCorrection", "evals": 6}
    trainer, _ = make("corrected", tree=tree)
    trainer.train_step()
    (stabilizer,) = (each for each in trainer.hooks if each.name == "stabiliser")
    assert stabilizer.counts["correction"] > 0
    corrected = step(make, weights, "again", tree)
    assert any(not torch.equal(corrected[name], weight) for name, weight in plain.items())


IMPLICIT = [
    name for name, (_, fields) in small_models.SMALL.items() if config_of(name)(**fields).implicit
]


@pytest.mark.parametrize("name", IMPLICIT)
def test_every_model_takes_noise_for_starts_or_refuses_it(name):
    kind, _ = small_models.SMALL[name]
    model = small_models.build(name).train()
    path = RandomPath(budget=(1, 1), steps=2, noise=1.0)
    if not isinstance(model, EquilibriumModel) or model.deq.coupled:
        with pytest.raises(ValueError, match="set path\\.noise to 0"):
            PathHook(path, model, seed=0)
        path = replace(path, noise=0.0)
    hook, outputs = PathHook(path, model, seed=0), []
    for seed in range(2):
        torch.manual_seed(seed)
        with hook.around(0):
            prediction = model(kind.inputs(), **hook.options())
            kind.loss(model, prediction.output).backward()
        outputs.append(prediction.output)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert torch.equal(*outputs) is not bool(path.noise)


def step(make, weights, name, tree, *options, steps=3):
    """Take some steps; the weights after them."""
    trainer, _ = make(name, *options, tree=tree)
    for _ in range(steps):
        trainer.train_step()
    return weights(trainer)


def test_micro_batches_have_the_budget_and_the_starts_of_the_whole(make, tree, weights):
    tree["path"] = PATH
    tree["optimizer"] = {"name": "SGD", "lr": 0.5, "momentum": 0.0}
    whole = step(make, weights, "whole", tree)
    parts = step(make, weights, "parts", tree, "--accumulate", "4")
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=1e-4, atol=1e-6)


def test_an_exact_gradient_without_noise_is_that_without_a_path(make, tree, weights):
    plain = step(make, weights, "plain", tree)
    alike = {"exact": True, "phantom": False}
    for gradient, same in alike.items():
        path = {**PATH, "gradient": gradient, "noise": 0}
        found = step(make, weights, gradient, {**tree, "path": path})
        assert all(torch.equal(found[name], weight) for name, weight in plain.items()) is same


def test_budgets_differ_from_step_to_step_and_from_seed_to_seed(make, tree):
    tree["path"] = {**PATH, "budget": [0, 1000]}

    def count(name, *options):
        """Evaluations without a gradient, in each of three steps."""
        trainer, _ = make(name, *options, tree=tree)
        (hook,) = (each for each in trainer.hooks if each.name == "path")
        found = []
        for number in range(3):
            with hook.around(number):
                found.append(chosen.get()[trainer.model.deq].solver.max_evals - 1)
        return found

    one, other = count("one"), count("other", "--seed", "1")
    assert len({*one, *other}) == 6 and count("again") == one


def test_a_path_leaves_out_what_says_otherwise_how_to_train(tree):
    """Each of these would be overridden without a word."""
    others = {
        "adjoint": {"name": "JacobianFree"},
        "neural": {"name": "Alternating"},
    }
    others = [
        *others.items(),
        ("adjoint", {"name": "AdaptiveAdjoint"}),
        ("adjoint", {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-3}}),
    ]
    for key, value in others:
        found = {**tree, "path": PATH, "adjoint": None, key: value}
        found = {key: value for key, value in found.items() if value is not None}
        with pytest.raises(ConfigError, match=rf"{key}.*set path\.gradient to exact"):
            recipes.parse(found)
        exact = {**PATH, "gradient": "exact"}
        assert recipes.parse({**found, "path": exact}).path.gradient == "exact"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ({"budget": [3, 1]}, "budget must be two increasing numbers"),
        ({"budget": [-1, 2]}, "budget must be two increasing numbers"),
        ({"steps": 0}, "steps"),
        ({"noise": 2}, "noise"),
        ({"gradient": "none"}, "gradient"),
    ],
)
def test_an_impossible_path_is_an_error_of_the_recipe(tree, path, message):
    with pytest.raises(ConfigError, match=message):
        recipes.parse({**tree, "path": {"name": "RandomPath", **path}})
