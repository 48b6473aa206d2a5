"""A run folder is all that is needed to go on with a run."""

import json
import shutil
from pathlib import Path

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


def test_a_finished_run_is_extended(folder, capsys):
    assert main(["train", str(folder), "--extend", "1"]) == 0
    assert (
        "New segment, to epoch 3: restarting the learning rate's Cosine schedule"
        in capsys.readouterr().out
    )
    assert [record["epoch"] for record in Folder(folder).read_metrics()] == [1, 2, 3]
    assert [each["epochs"] for each in Folder(folder).read_info()["segments"]] == [2, 3]
    assert json.loads(Folder(folder).evaluation.read_text())["step"] == 15


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "--optimizer.lr", "0.5"], "--optimizer.lr 0.005 there, 0.5 here"),
        (["--resume", "--solver.name", "Broyden"], "--solver.name Auto there"),
        (["--resume", "--epochs", "5"], "To train on, use --extend 3"),
        (["--resume", "--out", "elsewhere"], "leave --out out"),
        (["--extend", "0"], "--extend must be 1 or more epochs; got 0"),
        (["--extend", "some"], "--extend"),
        ([], "is a folder, not a recipe: to go on with the run in it, add --resume"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_would_change_the_result_is_refused_by_name(folder, words, message, capsys):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert main(["train", str(folder), *words]) == 1
    assert message in capsys.readouterr().err
    lock = folder / ".lock"
    now = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p != lock}
    assert {path: time for path, time in before.items() if path != lock} == now


def test_what_does_not_is_taken(stopped):
    assert (
        main(
            ["train", str(stopped), "--resume", "--checkpoint.keep", "1", "--checkpoint.every", "5"]
        )
        == 0
    )
    assert len(Folder(stopped).checkpoints.all()) == 1
    assert Folder(stopped).read_recipe().checkpoint.keep == 1


def test_a_run_is_resumed_and_extended_by_its_recipes_name_too(folder, capsys):
    """What it was begun with is in the folder, and so is that it was extended before."""
    words = ["train", "digits", "--out", str(folder)]
    assert main([*words, "--extend", "1"]) == 0
    assert main([*words, "--resume"]) == 0
    assert main([*words, "--extend", "1"]) == 0
    assert Folder(folder).read_recipe().ends == (2, 3, 4)
    assert main(["train", "mnist", "--out", str(folder), "--resume"]) == 1
    assert "was begun with the recipe digits, not mnist" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_said_under_quiet_too(folder, capsys):
    (Folder(folder).evaluation).unlink()
    (Folder(folder).checkpoints.all()[0] / "optimiser.pt").write_bytes(b"")
    assert main(["train", str(folder), "--resume", "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{folder}\n" and "is damaged (optimiser.pt" in said.err


def test_metrics_of_a_run_whose_checkpoints_were_removed_stay(folder, capsys):
    run = Folder(folder)
    before = run.metrics.read_bytes()
    shutil.rmtree(run.checkpoints.path)
    run.weights.unlink()
    assert main(["train", "digits", "--out", str(folder), "--optimizer.lr", "1e30"]) == 1
    assert "already holds a run" in capsys.readouterr().err
    assert run.metrics.read_bytes() == before


def test_what_is_no_run_is_named(tmp_path, capsys):
    assert main(["train", str(tmp_path), "--resume"]) == 1
    assert "is not a run folder: it has no recipe.yaml" in capsys.readouterr().err
    assert main(["train", "digits", "--resume", "--out", str(tmp_path / "none")]) == 1
    assert "there is no run folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [["--adjoint.name", "Shine"], ["--optimizer.lr", "1e30"], ["--batch_size", "5000"]],
    ids=lambda options: options[0],
)
def test_a_start_that_fails_leaves_no_folder(tmp_path, options, capsys):
    place = tmp_path / "runs" / "digits"
    assert main(["train", "digits", "--out", str(place), *options]) == 1
    assert "error" in capsys.readouterr().err
    assert not Path(tmp_path / "runs").exists()
