"""`equilibria reproduce`, as a user meets it."""

import json

import pytest
import torch
from toy import Toy

from equilibria.cli.main import main
from equilibria.experiments import registry


@pytest.fixture
def toy(monkeypatch):
    """The only experiment that there is."""
    toy = Toy()
    monkeypatch.setattr(registry, "EXPERIMENTS", {"toy/squares": toy.experiment})
    return toy


def told(capsys, *argv, status=0):
    capsys.readouterr()
    assert main(["reproduce", *map(str, argv)]) == status
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err.strip() if status else captured.out


def test_without_a_name_all_are_listed_and_nothing_is_run(toy, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = told(capsys)
    for word in ("toy/squares", "Euclid", "book II", "Squares."):
        assert word in out
    assert "all together 3 minutes" in out and not toy.calls and not list(tmp_path.iterdir())


def test_an_experiment_is_run_shown_and_written_and_goes_on(toy, capsys, tmp_path):
    first = told(capsys, "toy/squares", "--cases", "n[12]", "--out", tmp_path)
    assert toy.calls == [1, 2] and "not run: n3: not asked for" in first
    out = told(capsys, "toy/*", "--out", tmp_path)
    assert toy.calls == [1, 2, 3] and "not run" not in out
    file = json.loads((tmp_path / "toy-squares.json").read_text())
    assert file["command"].startswith("equilibria reproduce 'toy/*'")
    assert {"commit", "machine", "versions", "date", "note", "tables"} <= set(file)
    assert file["cases"]["n2"]["value"]["square"] == 4 and file["missing"] == {}
    assert "<svg" in (tmp_path / "toy-squares.svg").read_text()


def test_budget_0_draws_alone(toy, capsys, tmp_path):
    out = told(capsys, "toy/squares", "--budget", 0, "--out", tmp_path)
    assert not toy.calls and "the budget is spent" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["toy-squares.json", "toy-squares.svg"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["toy/sqares"], "there is no experiment 'toy/sqares'; did you mean 'toy/squares'?"),
        (["toy/squares", "--cases", "m1"], "there is no case 'm1'"),
        (["toy/squares", "--budget", "-1"], "--budget must be 0 or more minutes; got -1"),
        (["toy/squares", "--threads", "0"], "--threads must be 1 or more; got 0"),
        (["toy/squares", "--buget", "1"], "unknown option '--buget'; did you mean 'budget'?"),
        (["toy/squares", "--scale", "tpu"], "tpu"),
    ],
)
def test_mistakes_are_named(toy, capsys, tmp_path, argv, message):
    assert message in told(capsys, *argv, "--out", tmp_path, status=1)
    assert not toy.calls


def test_ctrl_c_keeps_what_is_done(toy, capsys, tmp_path):
    def interrupted(place):
        raise KeyboardInterrupt

    toy.changes["n2"] = {"run": interrupted}
    assert "interrupted" in told(capsys, "toy/squares", "--out", tmp_path, status=130)
    assert "n1" in json.loads((tmp_path / "toy-squares.json").read_text())["cases"]
    del toy.changes["n2"]
    told(capsys, "toy/squares", "--out", tmp_path)
    assert toy.calls == [1, 2, 3]


def test_a_failure_ends_in_a_message_and_a_traceback_in_a_file(toy, capsys, tmp_path):
    toy.changes["n2"] = {"run": lambda place: 1 / 0}
    error = told(capsys, "toy/squares", "--out", tmp_path, status=1)
    assert "failed: toy/squares: n2" in error and "error.txt" in error
    assert toy.calls == [1, 3]


def test_results_of_another_scale_are_refused(toy, capsys, tmp_path):
    told(capsys, "toy/squares", "--out", tmp_path)
    error = told(capsys, "toy/squares", "--scale", "gpu", "--out", tmp_path, status=1)
    assert "other settings" in error and "defect" not in error


def test_threads_are_set_and_recorded(toy, capsys, tmp_path):
    before = torch.get_num_threads()
    try:
        told(capsys, "toy/squares", "--threads", 1, "--out", tmp_path)
    finally:
        torch.set_num_threads(before)
    file = json.loads((tmp_path / "toy-squares.json").read_text())
    assert {case["threads"] for case in file["cases"].values()} == {1}
