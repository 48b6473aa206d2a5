"""Recipes of the networks that multiscale equilibria are compared with."""

import pytest

from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.loop import fit
from equilibria.zoo.vision.model.monotone import PeacemanRachford


def test_a_monotone_network_trains_by_its_splitting_method(tree, make, quiet):
    tree |= {
        "model": {"name": "monotone-dense", "width": 16},
        "solver": {"name": "PeacemanRachford", "alpha": 0.5, "rtol": 1e-3},
        "eval_solver": {"name": "ForwardBackward", "alpha": 0.5, "rtol": 1e-3},
    }
    trainer, folder = make(tree=tree)
    assert trainer.recipe.solver == PeacemanRachford(alpha=0.5, rtol=1e-3)
    assert recipes.parse(recipes.dump(trainer.recipe)) == trainer.recipe
    fit(trainer, folder, quiet)
    first, *_, last = folder.read_metrics()
    assert last["train"]["loss"] < first["train"]["loss"]
    for part in ("train", "test"):
        assert last[part]["forward"]["status"]["CONVERGED"] == 1.0


def test_a_neural_ode_trains_without_anything_to_solve(tree, make, quiet):
    pytest.importorskip("torchdiffeq")
    del tree["solver"]
    model = {"name": "augmented-neural-ode", "filters": 2}
    trainer, folder = make(tree=tree | {"model": model, "epoch_steps": 3})
    fit(trainer, folder, quiet)
    first, *_, last = folder.read_metrics()
    assert last["train"]["loss"] < first["train"]["loss"]
    assert last["train"]["forward"] == {"evals": None, "status": None}


def test_a_splitting_method_is_for_monotone_networks(tree, make):
    with pytest.raises(TypeError, match="the cell DenseCell is not: take another solver"):
        make(tree=tree | {"solver": {"name": "ForwardBackward"}})
    with pytest.raises(ConfigError, match="alpha"):
        recipes.parse(tree | {"solver": {"name": "ForwardBackward", "alpha": -1.0}})
