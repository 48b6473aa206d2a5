"""Explicit networks: trained, judged and measured as the others, with nothing to solve."""

import json

import pytest

from equilibria.run import examination, memory, run
from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.models import EquilibriumModel
from equilibria.run.run import RunError

MODELS = {
    "transformer-xl": {"width": 16, "heads": 2, "inner": 24, "memory": 8, "layers": 2},
    "trellisnet": {"width": 12, "hidden": 8, "layers": 2},
    "lstm": {"width": 12, "hidden": 12},
}


@pytest.fixture
def explicit(language):
    """explicit(name) -> a recipe of an explicit network."""

    def build(name):
        keys = ("solver", "adjoint", "regularizer", "pretrain")
        tree = {key: value for key, value in language.items() if key not in keys}
        return {**tree, "model": {"name": name, **MODELS[name]}}

    return build


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_resumes_and_is_read_back(fitted, explicit, name):
    tree = explicit(name)
    trainer, folder = fitted(tree=tree)
    first, *_, last = folder.read_metrics()
    assert last["valid"]["loss"] < first["valid"]["loss"]
    assert last["train"]["forward"] == last["valid"]["forward"] == {"evals": None, "status": None}
    assert "spectral_radius" not in last
    assert json.loads(folder.evaluation.read_text())["perplexity"] > 1
    loaded = run.load(folder.path)
    assert not isinstance(loaded.model, EquilibriumModel)
    with pytest.raises(RunError, match="nothing to examine"):
        examination.examine(loaded)
    (point,) = memory.measure(loaded.model, loaded.data, trainer.feed.batch(0))
    assert point.kind == "explicit" and point.bytes > 0


def test_a_recipe_of_one_has_nothing_of_an_equilibrium(explicit):
    recipe = recipes.parse(explicit("lstm"))
    assert recipe.solver is recipe.adjoint is None and recipe.layer() == {}
    assert recipes.parse(recipes.dump(recipe)) == recipe


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("solver", {"name": "Broyden"}),
        ("solver", {"name": "Anderson", "period": 3}),  # the default, but written down
        ("adjoint", {"name": "JacobianFree"}),
        ("drop_finished", True),
        ("regularizer", {"name": "JacobianPenalty"}),
        ("correction", {"name": "FixedPointCorrection"}),
        ("pretrain", {"name": "ShallowStart"}),
    ],
)
def test_what_only_an_equilibrium_has_is_an_error(explicit, key, value):
    tree = explicit("transformer-xl") | {key: value}
    with pytest.raises(ConfigError, match=f"is an explicit network.* has no .*{key}"):
        recipes.parse(tree)
    if isinstance(value, dict):
        assert recipes.parse(tree, [f"--{key}.name", "null"]).model.layers == 2


def test_an_equilibrium_needs_its_solver_and_adjoint(tree):
    for key in ("solver", "adjoint"):
        with pytest.raises(ConfigError, match=f"{key}: is missing"):
            recipes.parse(tree, [f"--{key}.name", "null"])
