"""Recipes so small that an experiment takes seconds: a line of words, a layer of 8 features."""

import yaml

from equilibria.experiments import trainings, variants
from equilibria.experiments.deq import convergence, imbalance, memory, quality, solvers, tolerance
from equilibria.train import memory as step_memory

SOLVES = {
    "solver": {"name": "Anderson", "rtol": 1e-2, "max_evals": 12},
    "adjoint": {"name": "Implicit", "linear": {"name": "GMRES", "rtol": 1e-2, "max_evals": 12}},
}
COMMON = {
    **SOLVES,
    "optimiser": {"name": "AdamW", "lr": 3e-3},
    "epochs": 2,
    "epoch_steps": 3,
    "batch_size": 4,
    "eval_batch_size": 4,
    "probes": 2,
}
CELLS = {
    "transformer": {
        "name": "deq-transformer", "width": 8, "heads": 2, "inner": 16, "memory": 4, "scale": 0.2,
        "dropout": 0.05,
    },
    "trellisnet": {"name": "deq-trellisnet", "width": 4, "hidden": 8, "scale": 0.2},
}  # fmt: skip


def text(folder):
    """Some hundred words to learn from."""
    path = folder / "text.txt"
    path.write_text("the cat sat on the mat and the dog lay by the door while it rained\n" * 60)
    return path


def recipe(folder, name, task, model, **fields):
    """Write a recipe and return its path, which does for a name."""
    path = folder / f"{name}.yaml"
    tree = {"description": f"tiny {name}", "task": task, "model": model, **COMMON, **fields}
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def shrink(monkeypatch, folder):
    """Put tiny recipes in the place of the shipped ones, and tiny sizes everywhere."""
    task = {"name": "language_modelling", "file": str(text(folder)), "unit": "words", "length": 8}
    pretrain = {"name": "ShallowStart", "layers": 2, "steps": 2}
    names = {
        cell: recipe(
            folder, cell, task, model, **({"pretrain": pretrain} if cell == "transformer" else {})
        )
        for cell, model in CELLS.items()
    }
    monkeypatch.setattr(trainings, "CELLS", names)
    copying = {"name": "copy_memory", "delay": 5, "train": 16, "test": 4}
    copy = recipe(folder, "copy", copying, CELLS["transformer"], eval_batch_size=4)
    monkeypatch.setattr(trainings, "COPY", copy)
    monkeypatch.setattr(trainings, "COPY_SEEDS", (0,))
    monkeypatch.setattr(trainings, "SEEDS", {"transformer": (0,), "trellisnet": (0,)})
    monkeypatch.setattr(variants, "EPOCHS", {"cpu": 2})
    monkeypatch.setattr(variants, "STEPS", {"cpu": 2})
    monkeypatch.setattr(convergence, "LENGTHS", (5, 10))
    monkeypatch.setattr(convergence, "DEPTH", 12)
    monkeypatch.setattr(convergence, "ACCELERATED", 8)
    monkeypatch.setattr(convergence, "SHOWN", (3, 6, 12))
    monkeypatch.setattr(convergence, "SEGMENTS", 2)
    monkeypatch.setattr(solvers, "EVALS", 10)
    monkeypatch.setattr(solvers, "SHOWN", (5, 10))
    monkeypatch.setattr(solvers, "SEGMENTS", 2)
    monkeypatch.setattr(tolerance, "TOLERANCES", (0.1, 0.01))
    monkeypatch.setattr(tolerance, "LIMITS", (1, 4))
    monkeypatch.setattr(memory, "LENGTHS", (5, 10))
    monkeypatch.setattr(memory, "DEPTHS", (3, 6))
    monkeypatch.setattr(memory, "BATCH", 2)
    monkeypatch.setattr(imbalance, "BATCHES", 2)
    monkeypatch.setattr(step_memory, "LONG", (3,))  # of the profiler, a second each
    monkeypatch.setattr(quality, "TURNS", 2)
    monkeypatch.setattr(quality, "WARM", 1)
