"""An explicit counterpart is the equilibrium network's cell, data and training: no fixed point."""

import dataclasses

import pytest
import torch
from tiny import CELLS

from equilibria.experiments import counterpart, measure, trainings
from equilibria.models import EquilibriumModel
from equilibria.train import recipe as recipes
from equilibria.train.pretrain import ShallowStart
from equilibria.train.recipe import IMPLICIT
from equilibria.train.regulariser import JacobianPenalty

NETWORKS = sorted(CELLS)


def loaded(small, cell, *options):
    return trainings.named(trainings.CELLS[cell], "cpu", *options)


@pytest.mark.parametrize("cell", NETWORKS)
@pytest.mark.parametrize("tied", [True, False])
def test_everything_but_the_fixed_point_is_the_same(small, cell, tied):
    recipe = dataclasses.replace(loaded(small, cell, "--seed", "3"), regulariser=JacobianPenalty())
    stack = counterpart.explicit(recipe, layers=5, tied=tied)
    ours, theirs = recipes.dump(recipe), recipes.dump(stack)
    assert stack.model.layers == 5 and stack.model.tied is tied and not stack.model.implicit
    assert all(theirs[key] in (None, False) for key in IMPLICIT)
    for key in set(ours) - {"model", "description", *IMPLICIT}:
        assert theirs[key] == ours[key], key
    differ = {k for k, v in ours["model"].items() if theirs["model"].get(k, "missing") != v}
    assert differ == {"name", "subsequence"}


@pytest.mark.parametrize("cell", NETWORKS)
def test_there_and_back_is_the_same_network(small, cell):
    model = loaded(small, cell).model
    stack = counterpart.explicit(loaded(small, cell)).model
    assert counterpart.implicit(stack) == model
    with pytest.raises(ValueError, match="no weight-tied stack"):
        counterpart.implicit(dataclasses.replace(stack, tied=False))


@pytest.mark.parametrize("cell", NETWORKS)
def test_a_stack_is_the_plain_iteration_of_its_equilibrium_network(small, cell):
    recipe = counterpart.explicit(loaded(small, cell), layers=4)
    task = recipe.task.load()
    torch.manual_seed(0)
    stack = task.model(recipe.model).eval()
    model = measure.equilibrium_of(recipe.model, task, stack.state_dict())
    assert isinstance(model, EquilibriumModel) and not model.training
    inputs = measure.segments(task, 9, 3).inputs
    assert inputs.shape == (3, 9)
    with torch.no_grad(), ShallowStart(layers=4).applied(model):
        torch.testing.assert_close(model(inputs).output, stack(inputs).output)


def test_what_has_no_stack_is_refused(small):
    with pytest.raises(ValueError, match="dense has no explicit stack; there are: deq-trans"):
        counterpart.explicit(recipes.load("digits"))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_recurrent_network_has_the_size_nearest_to_the_others(small, name):
    recipe = loaded(small, "transformer")
    made = counterpart.recurrent(recipe, name, 20)
    aim = counterpart.parameters(recipe.model, 20)

    def miss(width):
        sized = dataclasses.replace(made.model, width=width, hidden=width)
        return abs(counterpart.parameters(sized, 20) - aim)

    width = made.model.hidden
    assert made.model.width == width and miss(width) <= min(miss(width - 1), miss(width + 1))
    assert made.optimiser == recipe.optimiser and made.solver is None
