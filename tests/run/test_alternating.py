"""Training whose solves are by a solver that learns along with the model."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import equilibria as eq
from equilibria.nn.methods import Methods, chosen
from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.alternating import Alternating, Alternation
from equilibria.run.resume import restore, save
from equilibria.run.run import Folder
from equilibria.run.trainer import Trainer
from several import trainer_of

TREE: dict[str, Any] = {
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "shape": [1, 8, 8], "classes": 10, "width": 24},
    "solver": {"name": "Anderson", "period": 3, "rtol": 1e-3},
    "neural": {"every": 6, "batches": 3, "start_steps": 60, "steps": 4, "horizon": 6},
    "batch_size": 32,
    "epoch_steps": 12,
    "epochs": 2,
}


def test_later_steps_solve_by_what_earlier_ones_taught():
    neural = {"every": 24, "batches": 16, "start_steps": 400, "steps": 4, "horizon": 6}
    solver = {"name": "Anderson", "period": 3, "rtol": 3e-2}
    trainer = trainer_of(TREE | {"neural": neural, "solver": solver})
    layer, solvers = trainer.model.deq, []
    for _ in range(26):
        keep = layer.register_forward_hook(
            lambda layer, *_: solvers.append(chosen.get().get(layer, Methods()).neural is not None)
        )
        if trainer.step == 24:
            keep.remove()  # of the solves that it learns from
        trainer.train_step()
        keep.remove()
    assert trainer.neural.used is not None  # it pays here
    assert solvers == [False] * 24 + [True]
    assert layer.neural is None and layer.eval_solver is None
    assert not any("neural" in name for name in trainer.model.state_dict())
    record = trainer.finish_epoch()["neural"]
    assert record["used"] and record["evals"] <= 0.9 * record["classical"]
    assert record["seconds"] > 0
    assert trainer.neural.finish_epoch()["neural"]["seconds"] == 0


@pytest.fixture
def reduced():
    """Of bfloat16; Accelerate keeps the precision for the whole process."""
    yield evaluation.accelerator("bf16", "cpu")
    evaluation.accelerator("float32", "cpu")


@pytest.mark.parametrize("model", ["dense", "conv"])
def test_in_reduced_precision_it_learns_in_full(model, reduced):
    sizes = {"dense": {"width": 24}, "conv": {"channels": 8}}[model]
    recipe = recipes.parse(
        {
            **TREE,
            "model": {"name": model, "shape": [1, 8, 8], "classes": 10, **sizes},
            "solver": {"name": "Anderson", "period": 3, "rtol": 3e-2},
            "precision": "bf16",
        }
    )
    trainer = Trainer(recipe, recipe.task.load(), reduced)
    kinds: set[torch.dtype] = set()
    trainer.model.deq.register_forward_pre_hook(
        lambda layer, inputs: kinds.update(x.dtype for x in inputs)
    )
    for _ in range(6):
        trainer.train_step()
    assert kinds == {torch.bfloat16}
    for _ in range(2):  # the first of them learns, and solves by what it has learned
        trainer.train_step()
    assert all(p.dtype == torch.float32 for p in trainer.neural.learned.parameters())


def test_a_solver_that_cannot_be_trained_stops_no_training(monkeypatch):
    def fails(*arguments):
        raise FloatingPointError("the gradient is not finite in 4 of 4 steps")

    trainer = trainer_of(TREE)
    monkeypatch.setattr("equilibria.run.alternating.train", fails)
    for _ in range(8):
        trainer.train_step()
    assert trainer.neural.used is None and trainer.neural.learned is None
    assert trainer.neural.finish_epoch()["neural"]["used"] is False


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    """From what was saved before the solver had learned, and after it had."""
    whole = trainer_of(TREE)
    for step in range(1, 15):
        whole.train_step()
        if step in (4, 8):
            (tmp_path / str(step)).mkdir()
            save(whole, Folder(tmp_path / str(step)))
    assert whole.neural.learned is not None
    for begun in (4, 8):
        second = trainer_of(TREE)
        assert restore(second, Folder(tmp_path / str(begun))) is not None
        while second.step < 14:
            second.train_step()
        for name, value in whole.model.state_dict().items():
            assert torch.equal(second.model.state_dict()[name], value), name
        for name, value in whole.neural.learned.state_dict().items():
            assert torch.equal(second.neural.learned.state_dict()[name], value), name


def test_where_nothing_converges_the_recipes_solver_goes_on():
    trainer = trainer_of(TREE)
    teacher = eq.Anderson(rtol=1e-6, max_evals=2)
    trainer.neural.how = replace(trainer.neural.how, teacher=teacher)
    with pytest.warns(UserWarning, match=r"neural: only 0 of 96 samples have an equilibrium"):
        for _ in range(7):
            trainer.train_step()
    assert trainer.neural.used is None
    assert trainer.neural.finish_epoch()["neural"]["used"] is False


@pytest.mark.parametrize(
    ("neural", "words"),
    [
        ({"every": 0}, "every must be at least 1; got 0"),
        ({"batches": 1}, "batches must be at least 2; got 1"),
        ({"every": 4, "batches": 8}, "every is 4, fewer steps than the 8 batches to learn from"),
        ({"horizon": 0}, "horizon must be at least 1; got 0"),
    ],
)
def test_wrong_numbers_are_refused(neural, words):
    with pytest.raises(recipes.ConfigError, match=words):
        recipes.parse({**TREE, "neural": neural})


def test_a_solver_that_would_never_learn_is_told_of():
    with pytest.warns(UserWarning, match=r"neural\.every is 24 and the run has 24 steps"):
        trainer_of(TREE | {"neural": {**TREE["neural"], "every": 24}})


def test_what_a_learned_solver_cannot_go_with_is_refused():
    shine = {"name": "Shine"}
    broyden = {"name": "Broyden", "memory": None}
    with pytest.raises(recipes.ConfigError, match=r"a learned solver has none: set neural\.name"):
        recipes.parse({**TREE, "adjoint": shine, "solver": broyden})
    recipe = recipes.parse({**TREE, "neural": None})
    assert recipe.neural is None
    assert "neural" not in recipes.decisive(recipe)
    with pytest.raises(recipes.ConfigError, match="neural"):
        recipes.parse({"task": TREE["task"], "model": {"name": "mfn"}, "neural": {"every": 9}})


def test_the_rows_of_a_graph_are_coupled():
    trainer = trainer_of(TREE)
    trainer.model.deq.coupled = True
    with pytest.raises(ValueError, match="rows of this layer are coupled"):
        Alternation(Alternating(), trainer.model, 0, 1000)
