"""Training by an audited adjoint: logged, resumed bit for bit, and loaded where it ended."""

import json

import pytest
import torch

from equilibria.run import recipe as recipes
from equilibria.run import run as runs
from equilibria.run.cli.main import main
from equilibria.run.resume import restore, save
from equilibria.run.run import Folder
from several import trainer_of

WORDS = ["--epochs", "2", "--epoch_steps", "6", "--task.samples", "300", "--model.width", "16"]
AUDIT = ["--adjoint.name", "AdaptiveAdjoint", "--adjoint.check_every", "5", "--adjoint.min_cosine"]


def trainer(*adjoint):
    return trainer_of(recipes.read("digits"), *WORDS, *(adjoint or (*AUDIT, "0.9")))


def test_it_is_logged_and_the_run_is_loaded_on_its_rung(tmp_path):
    words = ["--out", str(tmp_path / "run"), *WORDS, *AUDIT, "0.9", "--quiet"]
    assert main(["train", "digits", *words]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    audits = [json.loads(line)["audit"] for line in lines]
    assert [audit["step"] for audit in audits] == [5, 10]
    assert audits[-1]["cosine"] >= 0.9
    loaded = runs.load(tmp_path / "run")
    assert loaded.model.deq.adjoint.level == audits[-1]["level"]


def test_resumed_equals_uninterrupted(tmp_path):
    whole, part = trainer(), trainer()
    for each in (whole, part):
        for _ in range(7):
            each.train_step()
    folder = Folder(tmp_path)
    save(part, folder)
    resumed = trainer()
    restore(resumed, folder)
    assert resumed.model.deq.adjoint == part.model.deq.adjoint
    for each in (whole, resumed):
        for _ in range(4):
            each.train_step()
    assert resumed.hooks[0].audit.latest == whole.hooks[0].audit.latest
    for one, two in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_audit_changes_nothing_but_the_adjoint():
    """On a level that holds, training is as by the adjoint itself."""
    audited, plain = trainer(*AUDIT, "0.01"), trainer("--adjoint.name", "JacobianFree")
    for each in (audited, plain):
        for _ in range(7):
            each.train_step()
    for one, two in zip(audited.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_an_explicit_network_has_nothing_to_audit():
    with pytest.raises(Exception, match="adjoint"):
        recipes.load("digits", ["--model.name", "resnet", "--adjoint.name", "AdaptiveAdjoint"])
