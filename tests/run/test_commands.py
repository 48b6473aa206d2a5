"""The commands, as a user meets them: what they print, what they refuse, how they end."""

import json
import sys

import pytest
import yaml

from equilibria.run.cli.main import commands, main

RECIPE = {
    "description": "five steps on digits",
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "width": 8},
    "solver": {"name": "Picard", "rtol": 1e-3, "max_evals": 30},
    "epochs": 1,
    "batch_size": 256,
    "probes": 4,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run, made by the command line."""
    path = tmp_path_factory.mktemp("cli")
    (path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    assert main(["train", str(path / "tiny.yaml"), "--out", str(path / "run"), "--seed", "3"]) == 0
    return path / "run"


def fails(capsys, *argv):
    """Run a command that must fail and return its one line of explanation."""
    capsys.readouterr()
    assert main(argv) == 1
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    program = f"equilibria {argv[0]}" if argv[0] in commands() else "equilibria"
    assert lines[0].startswith(f"{program}: error: ")
    return lines[0]


def test_a_trained_run_is_complete(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("recipe.yaml", "run.json", "metrics.jsonl", "events", "model.safetensors"),
        *("checkpoints", "evaluation.json", "images.json", ".lock"),
    }
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["seed"] == 3


@pytest.mark.usefixtures("shallow")
def test_memory_is_measured_by_a_command_of_its_own(folder, capsys):
    assert main(["memory", str(folder)]) == 0
    assert "memory.json" in capsys.readouterr().out.replace("\n", "")
    kinds = {point["kind"] for point in json.loads((folder / "memory.json").read_text())}
    assert kinds == {"deq", "unrolled", "checkpointed"}


def test_evaluate_prints_and_writes_the_same_figures(folder, capsys):
    trained = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").unlink()
    assert main(["evaluate", str(folder)]) == 0
    result = json.loads((folder / "evaluation.json").read_text())
    assert result == trained
    out = capsys.readouterr().out
    assert f"{100 * result['accuracy']:.2f} %" in out
    assert "CONVERGED" in out
    for depth, figures in result["at"].items():
        assert f"accuracy after {depth} evaluation{'' if depth == '1' else 's'}" in out
        assert f"{100 * figures['accuracy']:.2f} %" in out


@pytest.mark.parametrize("words", [["--budgets", "4"], ["--budgets"], ["--no-baselines"]])
def test_what_is_for_language_models_is_refused_for_others(folder, capsys, words):
    before = (folder / "evaluation.json").read_text()
    message = fails(capsys, "evaluate", str(folder), *words)
    assert f"{words[0]} is for " in message and "language models" in message
    assert "ImageClassification" in message
    assert (folder / "evaluation.json").read_text() == before


def test_a_second_start_is_refused_and_names_the_folder(folder, capsys):
    recipe = str(folder.parent / "tiny.yaml")
    message = fails(capsys, "train", recipe, "--out", str(folder), "--seed", "3")
    assert str(folder) in message
    assert "--resume" in message


def test_a_finished_run_says_so(folder, capsys):
    recipe = str(folder.parent / "tiny.yaml")
    assert main(["train", recipe, "--out", str(folder), "--seed", "3", "--resume"]) == 0
    assert "is finished" in " ".join(capsys.readouterr().out.split())


def test_a_run_is_not_resumed_with_another_recipe(folder, capsys):
    recipe = str(folder.parent / "tiny.yaml")
    message = fails(capsys, "train", recipe, "--out", str(folder), "--seed", "4", "--resume")
    assert "seed: 3 there, 4 here" in message


def test_recipes_lists_and_shows(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "digits" in out and "mnist" in out
    assert main(["recipes", "digits"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["solver"]["patience"] == 20


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train"], "recipe"),
        (["train", "digts"], "no recipe 'digts'; did you mean 'digits'?"),
        (["train", "nowhere.yaml"], "no recipe file nowhere.yaml"),
        (["train", "digits", "--solver.histroy", "3"], "did you mean 'solver.history'?"),
        (["train", "digits", "--solver.history", "x"], "solver.history: expected a whole number"),
        (["train", "digits", "--solver.rtol", "-1"], "solver: "),
        (["train", "digits", "--batch_size", "0"], "batch_size must be at least 1"),
        (["train", "digits", "--task.data", "digitz"], "digits"),
        (["train", "digits", "--batch_size", "100000"], "the run has only"),
        (["evaluate", "nowhere"], "no run folder nowhere"),
        (["evaluate"], "run"),
        (["recipes", "mnits"], "did you mean 'mnist'?"),
        (["evaluate", "nowhere", "--data_dri", "x"], "did you mean '--data-dir'?"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_message_and_a_failure(argv, what, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert what in fails(capsys, *argv)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def ode(tmp_path):
    """A recipe of a neural ODE that three evaluations will not do for."""
    model = {"name": "neural-ode", "filters": 2, "max_evals": 3}
    recipe = {name: value for name, value in RECIPE.items() if name != "solver"}
    (tmp_path / "ode.yaml").write_text(yaml.safe_dump(recipe | {"model": model}))
    return str(tmp_path / "ode.yaml"), "--out", str(tmp_path / "run")


def test_dynamics_that_are_too_stiff_are_no_defect(ode, capsys):
    pytest.importorskip("torchdiffeq")
    message = fails(capsys, "train", *ode)
    assert "takes more than 3 evaluations" in message and "defect" not in message


def test_a_missing_package_is_no_defect_and_leaves_no_run(ode, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    message = fails(capsys, "train", *ode)
    assert "pip install 'equilibria[ode]'" in message and "defect" not in message
    assert not (tmp_path / "run").exists()


def test_missing_data_is_one_message(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / "mnist" / name).write_bytes(b"\0\0\10\3 not mnist")
    message = fails(capsys, "train", "mnist", "--data-dir", str(tmp_path))
    assert "mnist" in message.lower()
    assert not (tmp_path / "runs").exists()


def test_debug_shows_where_an_error_came_from(capsys):
    assert main(["--debug", "evaluate", "nowhere"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("command", commands())
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"equilibria {command}" in out
    assert len(out.splitlines()) > 8


@pytest.mark.parametrize("before", [[], ["--out", "somewhere"]], ids=" ".join)
def test_help_of_a_recipe_lists_its_keys_with_their_values(before, capsys):
    with pytest.raises(SystemExit):
        main(["train", *before, "digits", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    for key in ("--solver.history", "--model.width", "--optimizer.lr", "--adjoint.linear.rtol"):
        assert key in out
    assert "default: 0.005" in out


def test_without_a_command_all_are_listed(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in commands())
