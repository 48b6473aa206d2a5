"""Recipes from YAML and options: what they become, and what they refuse."""

import pytest

from applications import needs
from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.solve import Anderson, Broyden, Implicit


def with_(tree, path, value):
    *way, last = path.split(".")
    node = tree
    for key in way:
        node = node.setdefault(key, {})
    node[last] = value
    return tree


@pytest.mark.parametrize("name", recipes.available())
def test_every_shipped_recipe_is_read_back_from_its_resolved_form(name):
    recipe = recipes.load(name)
    assert recipe.description
    assert recipes.parse(recipes.yaml.safe_load(recipes.to_yaml(recipe))) == recipe


def test_the_resolved_form_spells_out_every_default(tree):
    resolved = recipes.dump(recipes.parse(tree))
    assert resolved["solver"]["name"] == "Anderson"
    assert resolved["solver"]["period"] == Anderson().period == 1
    linear = resolved["adjoint"]["linear"]
    assert (resolved["adjoint"]["name"], linear["name"]) == ("Implicit", "Fallback")
    then = {"rtol": 1e-4, "atol": 0.0, "error": None, "max_evals": 100, "restart": 50}
    assert linear["then"] == {"name": "GMRES", **then}
    assert linear["first"]["name"] == "Auto" and linear["first"]["newton"] is None
    assert resolved["eval_solver"] is None
    assert resolved["seed"] == 0


def test_options_override_values(tree):
    recipe = recipes.parse(tree, ["--epochs", "7", "--solver.history=3", "--seed", "5"])
    assert (recipe.epochs, recipe.seed) == (7, 5)
    assert recipe.solver == Anderson(rtol=1e-3, max_evals=30, history=3)


def test_a_switch_of_class_keeps_what_both_have(tree):
    tree["solver"]["history"] = 3
    options = ("--solver.name=Broyden", "--solver.memory=7")
    for argv in (options, options[::-1]):
        assert recipes.parse(tree, argv).solver == Broyden(rtol=1e-3, max_evals=30, memory=7)


def test_a_switch_of_class_does_not_keep_a_default_of_the_old_one(tree):
    del tree["solver"]
    resolved = recipes.dump(recipes.parse(tree))
    assert resolved["solver"]["history"] == 20
    recipe = recipes.parse(resolved, ["--solver.name", "Anderson"])
    assert recipe.solver == Anderson()
    resolved["solver"] |= {"history": 8}
    recipe = recipes.parse(resolved, ["--solver.name", "Anderson"])
    assert recipe.solver == Anderson(history=8)


def test_a_switch_of_model_keeps_the_shape_of_the_data(tree):
    """Even where the recipe writes what is the old class's default."""
    tree["model"]["shape"] = [1, 8, 8]
    assert recipes.parse(tree, ["--model.name", "conv"]).model.shape == (1, 8, 8)


def test_solvers_are_identified_by_the_names_of_published_rows(tree):
    """Anderson with a period was called AlternatingAnderson, with or without its period."""
    tree["solver"] = {"name": "Anderson", "period": 3}
    assert recipes.decisive(recipes.parse(tree))["solver"]["name"] == "AlternatingAnderson"
    tree["solver"] = {"name": "Anderson"}
    assert recipes.decisive(recipes.parse(tree))["solver"]["name"] == "Anderson"
    newton = {"name": "Auto", "newton": {"name": "GMRES", "restart": 30}}
    assert recipes.modernize(newton) == newton
    assert recipes.modernize({"name": "Auto", "linear": newton["newton"]}) == newton
    old = {"solver": {"name": "AlternatingAnderson", "history": 4}}
    assert recipes.modernize(old) == {"solver": {"name": "Anderson", "history": 4, "period": 3}}


def test_a_forward_solver_may_stand_in_for_the_linear_one(tree):
    tree["adjoint"] = {"name": "Implicit", "linear": {"name": "Anderson", "history": 2}}
    assert recipes.parse(tree).adjoint == Implicit(linear=Anderson(history=2))


def test_yaml_may_write_1e_minus_3_without_a_dot(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "task: {name: image_classification}\nmodel: {name: dense}\nsolver: {rtol: 1e-3}\n"
    )
    assert recipes.load(str(path)).solver.rtol == 1e-3


BAD = [
    ("solvr", {"name": "Anderson"}, "unknown key 'solvr", "did you mean 'solver"),
    ("solver.histroy", 3, "unknown key 'solver.histroy'", "did you mean 'solver.history'?"),
    ("history", 3, "unknown key 'history'", "did you mean 'solver.history'?"),
    ("solver.name", "Andersen", "solver: no 'Andersen'", "did you mean 'Anderson'?"),
    ("model.name", "dence", "model: no 'dence'", "did you mean 'dense'?"),
    ("adjoint.linear.name", "GMERS", "adjoint.linear: no 'GMERS'", "did you mean 'GMRES'?"),
    ("solver", "Anderson", "solver: expected a mapping", "{name: "),
    ("solver.history", "many", "solver.history: expected a whole number or null", "'many'"),
    ("epochs", 2.5, "epochs: expected a whole number", "got 2.5"),
    ("model.shape", "big", "model.shape: expected a list, each a whole number", "'big'"),
    ("regularizer", {"name": "None"}, "regularizer: no 'None'", "JacobianPenalty, null"),
    ("precision", "fp61", "precision: no 'fp61'", "did you mean 'fp16'?"),
    ("solver.rtol", -1e-3, "solver: ", "rtol"),
    ("solver.history", 0, "solver: ", "history"),
    ("optimizer.lr", 0.0, "optimizer: lr must be positive", "0.0"),
    ("schedule.warmup", 2.0, "schedule: warmup", "2.0"),
    ("batch_size", 0, "batch_size must be at least 1", "0"),
    ("clip", -1.0, "clip must be positive", "-1.0"),
    ("model", None, "model: is missing", "dense"),
    ("regularizer.controller", {}, "regularizer.controller.evals: is missing", "no default"),
]


@pytest.mark.parametrize(("path", "value", "what", "hint"), BAD, ids=[bad[0] for bad in BAD])
def test_a_bad_key_or_value_is_named_with_what_is_right(tree, path, value, what, hint):
    with pytest.raises(ConfigError) as caught:
        recipes.parse(with_(tree, path, value))
    message = str(caught.value)
    assert what in message
    assert hint in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--epoch", "3"], "did you mean 'epochs'?"),
        (["--solver.rtol", "tiny"], "solver.rtol: expected a number or a list, each a number"),
        (["--solver.rtol", "-1"], "rtol"),
        (["--solver.name", "Newton"], "solver: no 'Newton'"),
        (["--solver.memory", "3"], "unknown option '--solver.memory'"),
        (["--epochs"], "--epochs needs a value"),
        (["--epochs", "--seed", "1"], "--epochs needs a value"),
        (["3"], "expected an option such as --seed 1, got '3'"),
    ],
)
def test_a_bad_option_is_named(tree, options, what):
    with pytest.raises(ConfigError) as caught:
        recipes.parse(tree, options)
    assert what in str(caught.value)


def test_an_option_switches_on_what_can_be_but_one_thing(tree):
    for off in ({}, {"regularizer": None}):
        found = recipes.parse({**tree, **off}, ["--regularizer.gamma", ".1"])
        assert found.regularizer.gamma == 0.1
        assert recipes.parse({**tree, **off}).regularizer is None
    with pytest.raises(ConfigError, match=r"regularizer\.gamma"):
        recipes.parse(tree, ["--regularizer.gama", ".1"])


@pytest.mark.parametrize(
    ("recipe", "british", "american"),
    [
        ("digits", {"optimiser": {"name": "SGD"}}, {"optimizer": {"name": "SGD"}}),
        ("digits", {"initialisation": {"scale": 0.5}}, {"initialization": {"scale": 0.5}}),
        ("digits", {"regulariser": {"gamma": 2.0}}, {"regularizer": {"gamma": 2.0}}),
        ("lm-text", {"name": "language_modelling"}, {"name": "language_modeling"}),
    ],
    ids=["optimiser", "initialisation", "regulariser", "language_modelling"],
)
def test_british_spellings_are_read_too(recipe, british, american):
    base = recipes.read(recipe)
    if "name" in british:
        trees = [{**base, "task": {**base["task"], **each}} for each in (british, american)]
    else:
        base.pop(*american, None)
        trees = [{**base, **each} for each in (british, american)]
    assert recipes.parse(trees[0]) == recipes.parse(trees[1])


def test_british_options_are_read_too():
    words = ("--optimiser.lr", "0.5", "--regulariser.gamma", "2", "--task.normalise", "false")
    american = ("--optimizer.lr", "0.5", "--regularizer.gamma", "2", "--task.normalize", "false")
    assert recipes.load("digits", words) == recipes.load("digits", american)
    with pytest.raises(ConfigError, match="nothing to solve"):
        recipes.parse({**recipes.read("digits"), "model": {"name": "resnet"}}, words)
    with pytest.raises(ConfigError, match="two spellings of one option"):
        recipes.load("digits", ("--optimizer.lr", "0.1", "--optimiser.lr", "0.5"))


@pytest.mark.parametrize("key", ["initialization", "regularizer", "solver"])
def test_what_has_keys_of_its_own_is_taken_away_by_its_name(tree, key):
    tree["initialization"] = {"scale": 0.5}
    with pytest.raises(ConfigError) as error:
        recipes.parse(tree, [f"--{key}", "null"])
    assert f"--{key}.name null" in str(error.value)
    gone = ["--initialization.name", "null"]
    assert recipes.parse(tree, gone).initialization is None


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match="no recipe 'digts'; did you mean 'digits'"):
        recipes.load("digts")


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", ""])
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"own\.yaml"):
        recipes.load(str(path))


def test_a_tolerance_for_each_leaf_is_a_list(tree):
    recipe = recipes.parse(tree, ["--solver.rtol", "[1e-2, 1e-3]", "--solver.atol", "0"])
    assert recipe.solver.rtol == (1e-2, 1e-3)
    assert recipes.parse(recipes.dump(recipe)) == recipe
    with pytest.raises(ConfigError, match=r"solver\.rtol"):
        recipes.parse(tree, ["--solver.rtol", "[1e-2, small]"])


NUMBERS = [
    ("digits", f"model.width={2**40}", "model.width: expected a whole number up to 4,294,967,295"),
    ("digits", "solver.rtol=.nan", "solver.rtol: expected a number, got nan"),
    ("chains", "model.kappa=.nan", "model.kappa: expected a number, got nan", "graph"),
    (
        *("lm-ptb", "model.embedding_initial=.inf"),
        *("embedding_initial must not be negative and", "language"),
    ),
    ("flow-layers-gpu", "task.shift=.inf", "shift must not be negative and finite", "flow"),
]


@pytest.mark.parametrize(
    ("recipe", "option", "message"),
    [pytest.param(*row[:3], marks=needs(*row[3:])) for row in NUMBERS],
)
def test_a_number_that_is_none_or_without_bound_is_refused(recipe, option, message):
    with pytest.raises(ConfigError, match=message):
        recipes.load(recipe, [f"--{option}"])


def test_a_saved_recipe_is_read_under_its_former_names():
    former = {
        "per_sample": True,
        "adjoint": {"name": "Implicit", "linear": {"name": "Relay", "last": {"name": "Dense"}}},
        "audit": {"name": "Audited", "floor": 0.9, "every": 7, "rung": 2},
    }
    today = recipes.modernize(former)
    assert today == {
        "drop_finished": True,
        "adjoint": {
            "name": "Implicit",
            "linear": {"name": "Fallback", "then": {"name": "DirectSolve"}},
        },
        "audit": {"name": "AdaptiveAdjoint", "min_cosine": 0.9, "check_every": 7, "level": 2},
    }
    assert recipes.modernize(today) == today
