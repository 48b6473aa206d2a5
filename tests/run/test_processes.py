"""Two processes train as one does."""

import json

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from equilibria.run.folder import Folder
from equilibria.run.loop import Interrupted, fit
from several import TIGHT, several, trainer_of

QUIET = Console(quiet=True)


def work(rank, tree, place, broken):
    """Train into "two"; then perhaps again, stopped and resumed, into "again"."""
    for name in ("two", "again") if broken else ("two",):
        trainer, folder = trainer_of(tree), Folder(place / name)
        assert trainer.accelerator.num_processes == 2
        if rank == 0:
            folder.create(trainer.recipe)
        trainer.accelerator.wait_for_everyone()
        if name == "again":
            with pytest.raises(Interrupted):
                fit(trainer, folder, QUIET, stop=lambda run=trainer: run.step == 4)
            torch.manual_seed(7)
            trainer = trainer_of(tree)
        fit(trainer, folder, QUIET, resume=name == "again")
    if trainer.stabilizer is not None:  # pyright: ignore[reportPossiblyUnboundVariable]
        (place / f"{rank}.json").write_text(json.dumps(trainer.stabilizer.factor))  # pyright: ignore[reportPossiblyUnboundVariable]


def test_two_processes_take_the_steps_of_one(fitted, tree, weights, tmp_path):
    # SGD, and tight solves: Adam would blow up the rounding of small gradients
    exact = {
        "task": {"name": "image_classification", "data": "digits"},
        "optimizer": {"name": "SGD", "lr": 0.5},
        **TIGHT,
        "epochs": 1,
        "clip": 1.0,
    }
    tree.update(exact)
    alone, _ = fitted("one")
    several(work, 2, tree, tmp_path, False)
    together = load_file(tmp_path / "two" / "model.safetensors")
    for name, value in weights(alone).items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-5)


def test_two_processes_penalise_the_same_steps_by_the_same_gamma(fitted, tree, tmp_path):
    controller = {"name": "EvaluationBudget", "evals": 4, "every": 2}
    tree["regularizer"] = {"name": "JacobianPenalty", "probability": 0.5, "controller": controller}
    tree["correction"] = {"name": "FixedPointCorrection"}
    _, folder = fitted("one")
    several(work, 2, tree, tmp_path, False)
    factors = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert factors[0] == factors[1] != 1.0
    one = folder.read_metrics()
    two = Folder(tmp_path / "two").read_metrics()
    for epoch, (a, b) in enumerate(zip(one, two, strict=True)):
        assert a["regulariser"]["applied"] == b["regulariser"]["applied"], epoch
        # Depths of the correction, and probes of the penalty, are those of one process.
        assert a["correction"]["loss"] == pytest.approx(b["correction"]["loss"], rel=1e-3)
        penalties = [each["regulariser"]["penalty"] or 0.0 for each in (a, b)]
        assert penalties[0] == pytest.approx(penalties[1], rel=1e-3)


def test_two_processes_share_the_streams_of_a_text(fitted, language, weights, tmp_path):
    """Each carries over what belongs to its rows; and both can be stopped and resumed."""
    for name in ("dropout", "embedding_dropout", "output_dropout"):
        language["model"][name] = 0.0
    language |= {
        "optimizer": {"name": "SGD", "lr": 0.5},
        **TIGHT,
        "regularizer": None,
        "epochs": 2,
        "epoch_steps": 3,
    }
    alone, _ = fitted("one", tree=language)
    several(work, 2, language, tmp_path, True)
    together = load_file(tmp_path / "two" / "model.safetensors")
    for name, value in weights(alone).items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-5)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in together.items())
    one, two = (Folder(tmp_path / name).read_metrics() for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert a["tokens"] == b["tokens"]
        assert a["valid"]["loss"] == pytest.approx(b["valid"]["loss"], rel=1e-4)
