"""The commands, as a user meets them: what they print, what they refuse, how they end."""

import json
import sys

import pytest
import yaml

from equilibria.run.cli.main import commands, main
from shared_runs import TINY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run, made by the command line."""
    path = tmp_path_factory.mktemp("cli")
    (path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    assert main(["train", str(path / "tiny.yaml"), "--out", str(path / "run"), "--seed", "3"]) == 0
    return path / "run"


def test_a_trained_run_is_complete(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("recipe.yaml", "run.json", "metrics.jsonl", "events", "model.safetensors"),
        *("checkpoints", "evaluation.json", "images.json", ".lock"),
    }
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["seed"] == 3


@pytest.mark.usefixtures("shallow")
def test_memory_is_measured_by_a_command_of_its_own(folder, prints):
    assert "memory.json" in prints("memory", folder).replace("\n", "")
    kinds = {point["kind"] for point in json.loads((folder / "memory.json").read_text())}
    assert kinds == {"deq", "unrolled", "checkpointed"}


def test_evaluate_prints_and_writes_the_same_figures(folder, prints):
    trained = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").unlink()
    out = prints("evaluate", folder)
    result = json.loads((folder / "evaluation.json").read_text())
    assert result == trained
    assert f"{100 * result['accuracy']:.2f} %" in out
    assert "CONVERGED" in out
    for depth, figures in result["at"].items():
        assert f"accuracy after {depth} evaluation{'' if depth == '1' else 's'}" in out
        assert f"{100 * figures['accuracy']:.2f} %" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [("--seed 3", "--resume"), ("--seed 4 --resume", "seed: 3 there, 4 here")],
    ids=["a second start", "another recipe"],
)
def test_a_run_is_not_started_again_nor_resumed_by_another_recipe(folder, words, said, fails):
    message = fails("train", folder.parent / "tiny.yaml", "--out", folder, *words.split())
    assert said in message and str(folder) in message


def test_recipes_lists_and_shows(prints):
    assert {"digits", "mnist"} <= {*prints("recipes").split()}
    assert yaml.safe_load(prints("recipes", "digits"))["solver"]["patience"] == 20


@pytest.fixture
def ode(tmp_path):
    """A recipe of a neural ODE that three evaluations will not do for."""
    model = {"name": "neural-ode", "filters": 2, "max_evals": 3}
    recipe = {name: value for name, value in TINY.items() if name != "solver"}
    (tmp_path / "ode.yaml").write_text(yaml.safe_dump(recipe | {"model": model}))
    return str(tmp_path / "ode.yaml"), "--out", str(tmp_path / "run")


def test_dynamics_that_are_too_stiff_are_no_defect(ode, fails):
    pytest.importorskip("torchdiffeq")
    assert "takes more than 3 evaluations" in fails("train", *ode)


def test_a_missing_package_is_no_defect_and_leaves_no_run(ode, fails, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    assert "pip install 'equilibria[ode]'" in fails("train", *ode)
    assert not (tmp_path / "run").exists()


def test_missing_data_is_one_message(fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / "mnist" / name).write_bytes(b"\0\0\10\3 not mnist")
    assert "mnist" in fails("train", "mnist", "--data-dir", tmp_path).lower()
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


def test_without_a_command_all_are_listed(prints):
    shown = prints()
    assert all(command in shown for command in commands())
