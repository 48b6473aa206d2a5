"""Solvers, linear solvers and adjoints of a user's own, which recipes name by import path."""

import dataclasses
import shutil
import sys

import pytest
import yaml

import equilibria as eq
from equilibria.run import plugins, yaml_text
from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.config import ConfigError
from equilibria.run.studies import identity
from tiny_run import train

MODULE = '''
from dataclasses import dataclass

import torch

import equilibria as eq
from equilibria.solve import Stepper, add_scaled


@dataclass(frozen=True, kw_only=True)
class Damped(eq.Solver):
    """Plain iteration.

    Args:
        length: of a step.
    """

    length: float = 1.0
    per_sample: int | None = None

    def start(self, tracked, jacobian):
        return Steps(self.length)


class Steps(Stepper):
    def __init__(self, length):
        self.length = length

    def step(self, now):
        return add_scaled(now.z, torch.full_like(now.size, self.length), now.residual)

    def select(self, index):
        pass


@dataclass(frozen=True, kw_only=True)
class Richardson(eq.LinearSolver):
    def cycle(self, product, start, goal, budget, active):
        one = torch.ones_like(start.size)
        return add_scaled(start.u, one, start.residual), active.to(torch.int64), start.size


@dataclass(frozen=True, kw_only=True)
class TwoTerms(eq.Adjoint):
    weight: float = 1.0

    def solve(self, product, g):
        return [a + self.weight * b for a, b in zip(g, product(g))]


class Endless(eq.Solver):
    pass


class Undecorated(Damped):
    order: int = 3


@dataclass(frozen=True, kw_only=True)
class Weighted(Damped):
    weights: torch.Tensor | None = None


class Plain:
    pass
'''

PATH = "its_solvers:Damped"
DAMPED = ("--solver.name", PATH, "--solver.length", "0.9")
ONE = ("--epochs", "1")
REFUSED = f"solver: {PATH} is not part of equilibria"
ADVICE = "add --import its_solvers (in Python: import its_solvers)"


@pytest.fixture(autouse=True)
def forget(tmp_path, monkeypatch):
    """The module `its_solvers` can be imported; forget() leaves the process as if it were new."""

    def forget():
        sys.modules.pop("its_solvers", None)
        plugins.LOADED.clear()

    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "its_solvers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    yield forget
    forget()


def test_a_run_by_ones_own_solver_is_refused_until_its_module_is_imported(tmp_path, fails, forget):
    run = train(tmp_path / "run", *DAMPED, *ONE, "--adjoint.name", "its_solvers:TwoTerms")
    tree = yaml_text.read(run / "recipe.yaml")
    assert (tree["solver"]["name"], tree["solver"]["length"]) == (PATH, 0.9)
    assert tree["adjoint"] == {"name": "its_solvers:TwoTerms", "weight": 1.0}
    saved = str(run / "recipe.yaml")
    for words in (["evaluate", str(run)], ["doctor", str(run)], ["train", saved, "--seed", "1"]):
        forget()
        error = fails(*words)
        assert REFUSED in error and ADVICE in error and "its_solvers" not in sys.modules
    assert main(["evaluate", str(run), "--import", "its_solvers"]) == 0
    forget()
    assert main(["--import", "its_solvers", "train", str(run), "--extend", "1"]) == 0
    forget()
    again = ["train", "digits", "--out", str(run), *DAMPED, "--auto-resume"]
    assert main(again) == 0  # the command line names the module too


def test_a_run_is_evaluated_by_ones_own_solver(tmp_path, fails, digits_run):
    run = shutil.copytree(digits_run, tmp_path / "run")
    assert main(["evaluate", str(run), "--solver", PATH]) == 0
    assert f'"solver": "{PATH}"' in (run / "evaluation-changed.json").read_text()
    assert "its_solvers:Richardson is not a subclass of eq.Solver" in fails(
        "evaluate", run, "--solver", "its_solvers:Richardson"
    )


def test_a_file_of_ones_own_is_named_by_its_stem(tmp_path, capsys, monkeypatch):
    file = tmp_path / "lib" / "its_solvers.py"
    words = ["train", "digits", "--solver.name", "own_its_solvers:Damped", "--help"]
    assert main(words) == 1 and "own_its_solvers cannot be imported" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "own_its_solvers", None)  # which is undone
    with pytest.raises(SystemExit):
        main(["--import", str(file), *words])
    assert "--solver.length FLOAT" in capsys.readouterr().out
    monkeypatch.delitem(sys.modules, "own_its_solvers")
    tree = {**recipes.read("digits"), "solver": {"name": "own_its_solvers:Damped"}}
    with pytest.raises(ConfigError, match=r"add --import its_solvers\.py$"):
        recipes.parse(tree)


def test_a_file_names_what_has_been_imported(tmp_path):
    path = tmp_path / "mine.yaml"
    tree = {**recipes.read("digits"), "solver": {"name": PATH, "length": 0.9, "rtol": 1e-2}}
    tree["adjoint"] = {"name": "Implicit", "linear": {"name": "its_solvers:Richardson"}}
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match="solver: its_solvers:Damped is not part of"):
        recipes.load(str(path))
    other = recipes.load(str(path), ["--solver.name", "Picard", "--adjoint.name", "JacobianFree"])
    assert other.solver == eq.Picard(rtol=1e-2)  # what the two have in common stays
    import its_solvers  # pyright: ignore[reportMissingImports]

    recipe = recipes.load(str(path))
    assert recipe.solver == its_solvers.Damped(length=0.9, rtol=1e-2)
    assert isinstance(recipe.adjoint.linear, its_solvers.Richardson)
    saved = yaml.safe_load(recipes.to_yaml(recipe))
    assert recipes.parse(recipes.modernize(saved)) == recipe
    code = identity.decides(recipe)["code"]
    assert code == [MODULE] and "code" not in identity.decides(other)


def test_what_is_built_in_has_its_own_name():
    recipe = recipes.load("digits", ["--solver.name", "equilibria.solve:Picard"])
    assert recipes.dump(recipe)["solver"]["name"] == "Picard" and not plugins.LOADED


def test_a_class_within_a_function_is_refused_when_the_recipe_is_saved():
    class Local(eq.Adjoint):
        pass

    recipe = dataclasses.replace(recipes.load("digits"), adjoint=Local())
    with pytest.raises(ConfigError, match="Local is defined inside of another definition"):
        recipes.dump(recipe)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("solver.name its_solvers:Dampd", "its_solvers has no class 'Dampd'; did you mean 'Damped"),
        ("solver.name its_solvers:Richardson", "Richardson is not a subclass of eq.Solver"),
        ("adjoint.linear.name its_solvers:TwoTerms", "subclass of eq.LinearSolver or eq.Solver"),
        ("adjoint.name its_solvers:Plain", "its_solvers:Plain is not a subclass of eq.Adjoint"),
        ("solver.name its_solvers:Endless", "its_solvers:Endless has no method start"),
        ("solver.name its_solvers:Undecorated", "decorate the class with @dataclass"),
        ("solver.name its_solvers:Weighted", "cannot hold the option 'weights' of type torch"),
        ("solver.name its_solvers.Damped", "a class of your own is named its_solvers:Damped"),
        ("solver.name no_such_module:Damped", "add the folder that holds it to PYTHONPATH"),
        ("model.name its_solvers:Damped", "model: no 'its_solvers:Damped'; choose from"),
        (f"solver.name {PATH} --solver.lenght 1", "did you mean 'solver.length'"),
        (f"solver.name {PATH} --solver.length far", "solver.length: expected a number, got 'far'"),
        (f"solver.name {PATH} --solver.max_evals 0", "expected a whole number >= 1, got 0"),
    ],
)
def test_what_cannot_be_named_is_explained(words, message):
    with pytest.raises(ConfigError) as caught:
        recipes.load("digits", f"--{words}".split())
    assert message in str(caught.value)
