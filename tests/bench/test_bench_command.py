"""`equilibria bench`, as a user meets it."""

import functools
import importlib.util
import json

import pytest

from equilibria.bench import cells
from equilibria.cli import bench
from equilibria.cli.main import main


def told(capsys, *argv, status=0):
    capsys.readouterr()
    assert main(["bench", *map(str, argv)]) == status
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err.strip() if status else captured.out


def test_solvers_prints_draws_and_writes(tmp_path, capsys):
    who = ["Picard", "Anderson", "default"]
    out = told(
        *(capsys, "solvers", "--turns", 2, "--problems", "linear-sym*-0.5", "--solvers", *who),
        *("--rtol", "1e-3", "--out", tmp_path),
    )
    assert "linear-symmetric-0.5" in out and "Solvers: who converges" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["solvers.json", "solvers.svg"]
    file = json.loads((tmp_path / "solvers.json").read_text())
    assert file["command"].startswith("equilibria bench solvers --turns 2")
    assert file["settings"]["rtol"] == 1e-3 and file["settings"]["solvers"] == who
    assert {"commit", "machine", "versions", "date", "note", "missing"} <= set(file)
    (problem,) = file["measured"]
    assert problem["problem"] == "linear-symmetric-0.5" and problem["f_ms"] > 0
    assert [each["solver"] for each in problem["measured"]] == who
    for each in problem["measured"]:
        assert each["reached"] == 64 and each["wrong"] == 0
        assert each["ms"] > 0 and each["residual"] <= 1.01e-3 and each["ops"] > 0
    for table in file["tables"]:
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert "<svg" in (tmp_path / "solvers.svg").read_text()


def test_adjoints_and_training_write_their_files(tmp_path, capsys, monkeypatch):
    small = {"width": 5, "batch": 2}
    radii = {"radius-0.5": functools.partial(cells.at_radius, radius=0.5, **small)}
    monkeypatch.setattr(cells, "RADII", radii)
    monkeypatch.setattr(
        cells, "WIDTHS", {"5x2": functools.partial(cells.plain, scale=0.7, **small)}
    )
    told(
        *(capsys, "adjoints", "--turns", 1, "--dtype", "float64", "--out", tmp_path),
        *("--adjoints", "Implicit(GMRES)", "JacobianFree"),
    )
    file = json.loads((tmp_path / "adjoints-float64.json").read_text())
    exact, free = file["measured"][0]["measured"]
    assert exact["error"] < 1e-2 < free["error"]
    assert exact["backward_ms"] > 0 and exact["bytes"] > 0
    out = told(capsys, "training", "--turns", 1, "--steps", "default", "--out", tmp_path)
    assert "Training step" in out
    names = {path.name for path in tmp_path.iterdir()}
    assert {"adjoints-float64.svg", "training.json", "training.svg"} <= names


def test_what_the_budget_leaves_out_is_not_run_and_made_up_for(tmp_path, capsys, monkeypatch):
    ticks = iter([0.0, 0.0, 1e6])
    monkeypatch.setattr(bench.time, "monotonic", lambda: next(ticks, 1e6))
    words = ["solvers", "--turns", 0, "--solvers", "Picard", "--out", tmp_path]
    words += ["--problems", "linear-symmetric-0.5", "linear-orthogonal-0.5"]
    out = told(capsys, *words, "--budget", 1)
    assert "Not run, the budget is spent: linear-orthogonal-0.5" in out
    file = json.loads((tmp_path / "solvers.json").read_text())
    assert file["missing"] == ["linear-orthogonal-0.5"]
    assert [each["problem"] for each in file["measured"]] == ["linear-symmetric-0.5"]
    monkeypatch.setattr(bench.time, "monotonic", lambda: 0.0)
    assert "Going on after 1 of 2" in told(capsys, *words)
    file = json.loads((tmp_path / "solvers.json").read_text())
    assert len(file["measured"]) == 2 and file["missing"] == []
    assert "Going on" not in told(capsys, *words)


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["solver"], "did you mean 'solvers'?"),
        (["solvers", "--problems", "tanh-128x9"], "no problem 'tanh-128x9'; did you mean"),
        (["solvers", "--solvers", "Pickard"], "no solver 'Pickard'; did you mean 'Picard'?"),
        (["adjoints", "--adjoints", "Fantom"], "no adjoint 'Fantom'; did you mean 'Phantom'?"),
        (["training", "--steps", "defualt"], "no step 'defualt'; did you mean 'default'?"),
        (["solvers", "--turns", "-1"], "--turns must be 0 or more; got -1"),
        (["solvers", "--rtol", "0"], "--rtol must be above 0; got 0"),
        (["solvers", "--rtol", "nan"], "Got value: nan"),
        (["solvers", "--budget", "0"], "--budget must be above 0; got 0"),
        (["solvers", "--threads", "0"], "--threads must be 1 or more; got 0"),
        (["solvers", "--device", "tpu-9"], "--device tpu-9 can't be used here"),
        (["solvers", "--mode", "graphs"], "--mode graphs needs a GPU"),
        (["solvers", "--dtype", "float16"], "float16"),
        (["solvers", "--tunrs", "3"], "unknown option '--tunrs'; did you mean 'turns'?"),
    ],
)
def test_a_mistake_is_one_message(argv, what, capsys, tmp_path):
    message = told(capsys, *argv, *(["--out", tmp_path] if len(argv) > 1 else []), status=1)
    assert what in message
    assert len(message.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("subject", ["solvers", "adjoints", "training"])
def test_a_missing_peer_is_named_with_what_installs_it(subject, capsys, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torchdeq" else real(name)
    )
    message = told(capsys, subject, "--out", tmp_path, status=1)
    assert "torchdeq" in message and "pip install equilibria[bench]" in message


@pytest.mark.parametrize("argv", [["bench"], ["bench", "--help"]])
def test_without_a_subject_all_are_listed(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(subject in out for subject in bench.SUBJECTS)
