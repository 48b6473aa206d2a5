"""The recipes of the papers' own language models say what the papers print."""

from typing import Any

import pytest

from equilibria.run import recipe as recipes

PUBLISHED: dict[str, dict[str, Any]] = {
    # Bai et al. 2019, table 2, with the hyperparameters of TrellisNet on Penn Treebank.
    "lm-ptb-trellisnet-paper": {
        "task.length": 110,
        "model.width": 400,
        "model.hidden": 1000,
        "model.kernel": 2,
        "model.output_dropout": 0.45,
        "model.weight_dropout": 0.5,
        "model.embedding_dropout": 0.1,
        "model.hidden_dropout": 0.28,
        "optimizer.name": "SGD",
        "optimizer.lr": 20.0,
        "batch_size": 16,
        "clip": 0.225,
    },
    # Bai et al. 2019, sec. 5, and the authors' script of the 98 million model.
    "lm-wt103-paper": {
        "task.length": 150,
        "model.width": 700,
        "model.heads": 10,
        "model.head_width": 70,
        "model.inner": 48000,
        "model.memory": 150,
        "model.dropout": 0.05,
        "model.input_dropout": 0.05,
        "model.output_dropout": 0.05,
        "model.attention_dropout": 0.0,
        "model.cutoffs": [20000, 40000, 200000],
        "model.division": 4,
        "model.scale": 0.01,
        "solver.max_evals": 30,
        "adjoint.linear.max_evals": 35,
        "pretrain.layers": 2,
        "pretrain.steps": 32000,
        "optimizer.name": "Adam",
        "optimizer.lr": 2.5e-4,
        "batch_size": 56,
    },
    # Bai et al. 2021, table 4.
    "lm-wt103-jr-paper": {
        "task.length": 150,
        "model.width": 700,
        "model.dropout": 0.06,
        "model.weight_norm": True,
        "model.pre_norm": False,
        "solver.max_evals": 12,
        "solver.rtol": 1e-3,
        "adjoint.linear.max_evals": 12,
        "adjoint.linear.rtol": 1e-4,
        "regularizer.gamma": 1.6,
        "regularizer.final_gamma": 2.5,
        "regularizer.probability": 0.35,
        "optimizer.name": "Adam",
        "optimizer.lr": 2.5e-4,
        "optimizer.weight_decay": 0.0,
        "schedule.name": "Cosine",
        "epochs": 23,
        "batch_size": 60,
    },
    # The authors' script of the pre-LN model.
    "lm-wt103-jr-preln-paper": {
        "model.pre_norm": True,
        "solver.max_evals": 14,
        "adjoint.linear.max_evals": 14,
        "regularizer.gamma": 2.0,
        "regularizer.probability": 0.4,
    },
    # Bai et al. 2019, table 3, with the authors' script.
    "lm-wt103-trellisnet-paper": {
        "task.length": 100,
        "model.subsequence": 50,
        "model.width": 512,
        "model.hidden": 1600,
        "model.input_dropout": 0.1,
        "model.output_dropout": 0.1,
        "model.hidden_dropout": 0.1,
        "solver.max_evals": 45,
        "adjoint.linear.max_evals": 45,
        "pretrain.layers": 40,
        "pretrain.steps": 30000,
        "optimizer.lr": 1e-3,
        "batch_size": 49,
        "clip": 0.07,
    },
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_papers_recipes_for_texts_have_the_papers_numbers(name):
    tree = recipes.dump(recipes.load(name))
    given: dict[str, Any] = {}
    for path in PUBLISHED[name]:
        value: Any = tree
        for key in path.split("."):
            value = value[key]
        given[path] = list(value) if isinstance(value, tuple) else value
    assert given == PUBLISHED[name]
