"""The recipes of the papers' own language models say what the papers print."""

import pytest

from equilibria.run import recipe as recipes
from published import among

PUBLISHED = {
    # Bai et al. 2019, table 2, with the hyperparameters of TrellisNet on Penn Treebank.
    "lm-ptb-trellisnet-paper": {
        "task": {"length": 110},
        "model": {"width": 400, "hidden": 1000, "kernel": 2, "output_dropout": 0.45}
        | {"weight_dropout": 0.5, "embedding_dropout": 0.1, "hidden_dropout": 0.28},
        "optimizer": {"name": "SGD", "lr": 20.0},
        "batch_size": 16,
        "clip": 0.225,
    },
    # Bai et al. 2019, sec. 5, and the authors' script of the 98 million model.
    "lm-wt103-paper": {
        "task": {"length": 150},
        "model": {"width": 700, "heads": 10, "head_width": 70, "inner": 48000}
        | {"memory": 150, "dropout": 0.05, "input_dropout": 0.05}
        | {"output_dropout": 0.05, "attention_dropout": 0.0}
        | {"cutoffs": [20000, 40000, 200000], "division": 4, "scale": 0.01},
        "solver": {"max_evals": 30},
        "adjoint": {"linear": {"max_evals": 35}},
        "pretrain": {"layers": 2, "steps": 32000},
        "optimizer": {"name": "Adam", "lr": 2.5e-4},
        "batch_size": 56,
    },
    # Bai et al. 2021, table 4.
    "lm-wt103-jr-paper": {
        "task": {"length": 150},
        "model": {"width": 700, "dropout": 0.06, "weight_norm": True, "pre_norm": False},
        "solver": {"max_evals": 12, "rtol": 1e-3},
        "adjoint": {"linear": {"max_evals": 12, "rtol": 1e-4}},
        "regularizer": {"gamma": 1.6, "final_gamma": 2.5, "probability": 0.35},
        "optimizer": {"name": "Adam", "lr": 2.5e-4, "weight_decay": 0.0},
        "schedule": {"name": "Cosine"},
        "epochs": 23,
        "batch_size": 60,
    },
    # The authors' script of the pre-LN model.
    "lm-wt103-jr-preln-paper": {
        "model": {"pre_norm": True},
        "solver": {"max_evals": 14},
        "adjoint": {"linear": {"max_evals": 14}},
        "regularizer": {"gamma": 2.0, "probability": 0.4},
    },
    # Bai et al. 2019, table 3, with the authors' script.
    "lm-wt103-trellisnet-paper": {
        "task": {"length": 100},
        "model": {"subsequence": 50, "width": 512, "hidden": 1600}
        | {"input_dropout": 0.1, "output_dropout": 0.1, "hidden_dropout": 0.1},
        "solver": {"max_evals": 45},
        "adjoint": {"linear": {"max_evals": 45}},
        "pretrain": {"layers": 40, "steps": 30000},
        "optimizer": {"lr": 1e-3},
        "batch_size": 49,
        "clip": 0.07,
    },
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_papers_recipes_for_texts_have_the_papers_numbers(name):
    assert among(recipes.dump(recipes.load(name)), PUBLISHED[name]) == PUBLISHED[name]
