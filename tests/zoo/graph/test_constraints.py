"""The bounds that a model keeps hold after every step."""

import torch
from accelerate import Accelerator

from equilibria.run import recipe as recipes
from equilibria.run.trainer import Trainer
from equilibria.zoo.graph import model as graph

CHAINS = {
    "task": {"name": "chains", "length": 4, "chains": 5},
    "model": {"name": "ignn", "hidden": [6, 5], "normalize": "row"},
    "optimizer": {"name": "SGD", "lr": 100.0},
    "epochs": 1,
    "epoch_steps": 3,
    "batch_size": 1,
}


def test_the_bound_of_every_layer_holds_after_every_step_and_not_by_standing_still():
    recipe = recipes.parse({**CHAINS, "description": "Chains."})
    trainer = Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))
    layers = [layer for layer in trainer.model.modules() if isinstance(layer, graph.IGNN)]
    assert len(layers) == 2
    for _ in range(3):
        before = [layer.recurrent.weight.detach().clone() for layer in layers]
        trainer.train_step()
        for layer, old in zip(layers, before, strict=True):
            new = layer.recurrent.weight.detach()
            assert float(new.abs().sum(1).max()) <= 0.9 * (1 + 1e-6)
            assert not torch.equal(new, old)
    evaluated = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.model.eval()(trainer.feed.batch(0).inputs)
    assert all(torch.equal(v, evaluated[k]) for k, v in trainer.model.state_dict().items())
