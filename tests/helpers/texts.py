"""A small text and a recipe for it."""

import copy
import random
from pathlib import Path

import pytest

from applications import present

LANGUAGE = {
    "description": "twelve steps on a small text",
    "task": {"name": "language_modeling", "unit": "characters", "length": 12, "test_share": 0.1},
    "model": {
        "name": "deq-transformer",
        "width": 16,
        "heads": 2,
        "inner": 24,
        "memory": 8,
        "scale": 0.1,
        "dropout": 0.1,
        "embedding_dropout": 0.1,
        "output_dropout": 0.1,
    },
    "solver": {"name": "Anderson", "period": 3, "rtol": 1e-2, "max_evals": 12},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-2, "max_evals": 12}},
    "regularizer": {"name": "JacobianPenalty", "gamma": 0.1, "probability": 0.5},
    "pretrain": {"name": "ShallowStart", "layers": 2, "steps": 3},
    "optimizer": {"name": "Adam", "lr": 0.01},
    "epochs": 3,
    "epoch_steps": 4,
    "batch_size": 4,
    "eval_batch_size": 5,
    "clip": 0.25,
    "probes": 2,
    "checkpoint": {"every": 2},
}


def write(path: Path, sentences: int = 12) -> Path:
    """Write a text of short sentences, always the same, and return where it is."""
    if not present("language"):
        pytest.skip("needs language of the zoo")
    draw = random.Random(0)
    words = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog")
    lines = (" ".join(draw.choices(words, k=7)) + ".\n" for _ in range(sentences))
    path.write_text("".join(lines))
    return path


def tree(place: Path, **model) -> dict:
    """The recipe on the text in `place`; a model that is named has these options alone."""
    found = copy.deepcopy(LANGUAGE)
    found["task"]["file"] = str(place / "text.txt")
    found["model"] = model if "name" in model else {**found["model"], **model}
    return found
