"""A run folder is all that is needed to go on with a run."""

import json
import shutil

import pytest
from safetensors.torch import load_file

import tiny_run
from equilibria.run.cli.main import main
from equilibria.run.folder import Folder
from equilibria.run.trainer import Trainer


@pytest.fixture
def folder(digits_run, tmp_path):
    return shutil.copytree(digits_run, tmp_path / "int")


@pytest.fixture
def stopped(tmp_path, monkeypatch, capsys):
    """A run that was stopped after its first epoch."""
    folder, step = tmp_path / "stopped", Trainer.train_step

    def stopping(self, *given):
        step(self, *given)
        if self.step == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", stopping)
        words = ["train", "digits", "--out", str(folder), *tiny_run.SMALL]
        assert main(words) == 130
    capsys.readouterr()
    return folder


@pytest.mark.parametrize("named", ["folder", "recipe"])
def test_what_the_run_was_begun_with_is_not_asked_for_again(stopped, digits_run, named):
    words = [str(stopped)] if named == "folder" else ["digits", "--out", str(stopped)]
    assert main(["train", *words, "--resume"]) == 0
    one, other = (load_file(Folder(path).weights) for path in (stopped, digits_run))
    assert all((one[key] == other[key]).all() for key in one)


def test_a_finished_run_is_extended(folder, prints):
    shown = prints("train", folder, "--extend", 1)
    assert "New segment, to epoch 3: restarting the learning rate's Cosine schedule" in shown
    assert [record["epoch"] for record in Folder(folder).read_metrics()] == [1, 2, 3]
    assert [each["epochs"] for each in Folder(folder).read_info()["segments"]] == [2, 3]
    assert json.loads(Folder(folder).evaluation.read_text())["step"] == 15


def test_what_does_not_change_the_result_is_taken(stopped, prints):
    prints("train", stopped, "--resume", "--checkpoint.keep", 1, "--checkpoint.every", 5)
    assert len(Folder(stopped).checkpoints.all()) == 1
    assert Folder(stopped).read_recipe().checkpoint.keep == 1


def test_a_run_is_resumed_and_extended_by_its_recipes_name_too(folder, prints, fails):
    """What it was begun with is in the folder, and so is that it was extended before."""
    for words in (("--extend", 1), ("--resume",), ("--extend", 1)):
        prints("train", "digits", "--out", folder, *words)
    assert Folder(folder).read_recipe().ends == (2, 3, 4)
    message = fails("train", "mnist", "--out", folder, "--resume")
    assert "was begun with the recipe digits, not mnist" in message


def test_a_damaged_checkpoint_is_said_under_quiet_too(folder, capsys):
    (Folder(folder).evaluation).unlink()
    (Folder(folder).checkpoints.all()[0] / "optimiser.pt").write_bytes(b"")
    assert main(["train", str(folder), "--resume", "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{folder}\n" and "is damaged (optimiser.pt" in said.err


def test_metrics_of_a_run_whose_checkpoints_were_removed_stay(folder, fails):
    run = Folder(folder)
    before = run.metrics.read_bytes()
    shutil.rmtree(run.checkpoints.path)
    run.weights.unlink()
    message = fails("train", "digits", "--out", folder, "--optimizer.lr", "1e30")
    assert "already holds a run" in message
    assert run.metrics.read_bytes() == before
