"""What a shell user is told to do is an option to type; what a Python user is told, Python."""

import io
import re
import shutil
from contextlib import redirect_stdout

import pytest
import torch

import equilibria as eq
from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.cli.option_words import as_options, list_options
from equilibria.stability import doctor

SAID = {
    "channel 0 is 1 everywhere: set task.normalize to false": "channel 0 is 1 everywhere: give "
    "--task.normalize false",
    "set solver.name to Broyden and solver.memory to null": "give --solver.name Broyden and "
    "--solver.memory null",
    "or have images brought to a larger size with task.size": "or have images brought to a larger "
    "size with --task.size",
    "as it is read, with task.channels: 3 (RGB) or 1 (grey)": "as it is read, with "
    "--task.channels 3 (RGB) or 1 (grey)",
    "raise regularizer.gamma from 2 to 4, and watch": "raise --regularizer.gamma from 2 to 4, and "
    "watch",
    "lower rtol of the solver (solver.rtol).": "lower rtol of the solver (--solver.rtol).",
    "Lower adjoint.linear.rtol to 1e-3.": "Lower --adjoint.linear.rtol to 1e-3.",
}
PLAIN = [
    "own.yaml: solver.rtol: expected a number, got 'x'",
    "there is no key 'solver.histroy': did you mean 'solver.history'?",
    "runs/digits/model.safetensors is missing: model.safetensors is damaged",
    "lower --model.width or --task.size",
    "see model.onnx and /data/task.split/readme",
    "give the layer init= or the call z0=",
    "there is no run folder model.run",
    r"C:\runs\model.png, model.pt or task.txt do not exist",
]


@pytest.mark.parametrize("text", SAID)
def test_keys_of_a_recipe_are_options(text):
    recipes.load("digits")  # whose keys they are
    assert as_options(text) == SAID[text]
    assert as_options(as_options(text)) == SAID[text]


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_key_stays(text):
    assert as_options(text) == text


def test_an_error_of_the_command_line_gives_options_that_help(tmp_path, capsys):
    argv = ["train", "digits", "--out", str(tmp_path / "run"), "--adjoint.name", "Shine"]
    assert main(argv) == 1
    _, _, advice = capsys.readouterr().err.rpartition("give ")
    words = [word for option in re.findall(r"--[a-z.]+ \w+", advice) for word in option.split()]
    assert {"--solver.name", "--solver.memory"} <= {*words}
    assert recipes.load("digits", [*argv[4:], *words]).solver.memory is None


@pytest.fixture(scope="module")
def loose(digits_run, tmp_path_factory):
    """A run whose solver is given up at once, so that there is something to advise."""
    folder = shutil.copytree(digits_run, tmp_path_factory.mktemp("advice") / "digits")
    recipe = folder / "recipe.yaml"
    text = re.sub(r"max_evals: \d+", "max_evals: 2", recipe.read_text(), count=1)
    assert text != recipe.read_text()
    recipe.write_text(text)
    return folder


def test_the_doctor_advises_a_run_in_options_and_cuts_no_method(loose, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["doctor", str(loose), "--samples", "12", "--starts", "1"]) == 3
    text = printed.getvalue()
    assert "--solver.max_evals" in text and "eq.stability" not in text
    assert "…" not in text
    row = re.search(r"│ adjoint(.*?)│ evaluations", text, re.DOTALL)
    written = re.sub(r"[│\s]", "", row[1])
    assert written.startswith("{name:Implicit") and written.endswith("}")


def test_the_doctor_advises_a_layer_in_python():
    layer = eq.DEQ(lambda z, x: 0.99 * z + x, solver=eq.Picard(rtol=1e-6, max_evals=3))
    said = str(doctor(layer, torch.ones(3, 2), starts=1))
    assert "eq.stability.jacobian_penalty(sol)" in " ".join(said.split())
    assert "solver.max_evals" not in said and "regulariser" not in said


def test_a_line_of_a_recipe_as_options_gives_the_same_recipe():
    line = "adjoint: {name: Implicit, linear: {name: GMRES, rtol: 0.001, restart: 7}}"
    words = list_options(line)
    assert words == (
        "--adjoint.name Implicit --adjoint.linear.name GMRES --adjoint.linear.rtol 0.001 "
        "--adjoint.linear.restart 7"
    )
    linear = recipes.load("digits", words.split()).adjoint.linear
    assert isinstance(linear, eq.GMRES) and (linear.rtol, linear.restart) == (1e-3, 7)
    assert list_options("adjoint: {name: Phantom, flag: true, other: null}").endswith(
        "--adjoint.flag true --adjoint.other null"
    )
