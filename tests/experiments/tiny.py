"""Recipes so small that an experiment takes seconds: a line of words, a layer of 8 features."""

import dataclasses

import yaml

from equilibria.experiments import trainings, turns, variants
from equilibria.experiments.deq import convergence, imbalance, memory, solvers, tolerance
from equilibria.experiments.initialisation import length, moments, transformer, wide
from equilibria.experiments.initialisation import mnist as learnt
from equilibria.experiments.initialisation import solvers as start_solvers
from equilibria.experiments.jacobian import images, slope, toy, toy_model
from equilibria.experiments.mdeq import convergence as resolutions
from equilibria.experiments.mdeq import memory as image_memory
from equilibria.experiments.mdeq import networks, receptive
from equilibria.experiments.mdeq import tables as image_tables
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


IMAGES = {
    "name": "mdeq", "channels": [4, 4], "head_channels": [2, 2], "final": 8, "expansion": 2,
    "groups": 2, "initial": None,
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
    monkeypatch.setattr(turns, "TURNS", 2)
    monkeypatch.setattr(turns, "WARM", 1)
    study(monkeypatch, folder)
    multiscale(monkeypatch)
    beginnings(monkeypatch, folder)


def multiscale(monkeypatch):
    """Shorten what is measured of the multiscale networks, and train each once."""
    monkeypatch.setattr(image_tables, "SEEDS", (0,))
    monkeypatch.setattr(resolutions, "EVALS", 6)
    monkeypatch.setattr(resolutions, "SHOWN", (2, 6))
    monkeypatch.setattr(resolutions, "SAMPLES", 4)
    monkeypatch.setattr(resolutions, "BATCH", 2)
    monkeypatch.setattr(resolutions, "BATCHES", 2)
    monkeypatch.setattr(resolutions, "SIZES", (8, 16))
    monkeypatch.setattr(receptive, "ROUNDS", {1: 3, 2: 2})
    monkeypatch.setattr(receptive, "STRENGTH", (1, 2))
    monkeypatch.setattr(receptive, "ACROSS", 2)
    monkeypatch.setattr(image_memory, "DEPTHS", (2, 4))


def study(monkeypatch, folder):
    """Put digits in the place of the images of the Jacobian study, and shorten what it measures."""
    task = {"name": "image_classification", "data": "digits", "samples": 40, "valid": 20}
    pretrain = {"name": "ShallowStart", "layers": 2, "steps": 2}
    path = recipe(
        folder, "images", task, IMAGES, pretrain=pretrain, epoch_steps=2, eval_batch_size=500
    )
    digits = networks.Images(words="digits", recipe={"cpu": path}, channels=1, side=8)
    monkeypatch.setattr(networks, "DATA", dict.fromkeys(networks.DATA, digits))
    monkeypatch.setattr(networks, "model_of", networks.model_of.__wrapped__)  # without its cache
    monkeypatch.setattr(images, "BASE", {"cpu": path})
    monkeypatch.setattr(images, "ALL", (0,))
    monkeypatch.setattr(images, "SEEDS", dict.fromkeys(images.NAMES, (0,)))
    monkeypatch.setattr(images, "PROBED", (3, 3))
    monkeypatch.setattr(step_memory, "DEPTHS", (3,))  # of the profiler
    monkeypatch.setattr(toy_model, "TRAINING", 128)
    monkeypatch.setattr(toy_model, "VALIDATION", 50)
    short = {name: dataclasses.replace(each, epochs=1) for name, each in toy.SETTINGS.items()}
    monkeypatch.setattr(toy, "SETTINGS", short)
    monkeypatch.setattr(toy, "TILES", 5)
    monkeypatch.setattr(slope, "EVALS", 60)


def beginnings(monkeypatch, folder):
    """Train from two seeds and one scale of each ensemble."""
    start = {"ensemble": "orthogonal", "scale": 1.0}
    task = {"name": "image_classification", "data": "digits", "samples": 40, "valid": 20}
    model = {"name": "dense", "width": 8, "bound": None, "injection": "outside"}
    images_ = recipe(
        folder, "dense", task, model, initialisation=start, epoch_steps=2, eval_batch_size=500
    )
    monkeypatch.setattr(learnt, "RECIPE", images_)
    monkeypatch.setattr(learnt, "SEEDS", 2)
    monkeypatch.setattr(learnt, "SCALES", (1.0,))
    task = {
        "name": "language_modelling", "file": str(text(folder)), "unit": "characters", "length": 8,
    }  # fmt: skip
    layers = {**start, "layers": ["*expand*", "*contract*"]}
    cell = {"name": "deq-transformer", "width": 8, "heads": 2, "inner": 16, "weight_norm": False}
    words = recipe(folder, "layers", task, cell, initialisation=layers)
    monkeypatch.setattr(transformer, "RECIPE", words)
    monkeypatch.setattr(transformer, "SEEDS", 2)
    monkeypatch.setattr(transformer, "SCALES", (1.0,))
    monkeypatch.setattr(transformer, "POINT", 3)
    monkeypatch.setattr(transformer, "SEGMENTS", 4)
    linear_networks(monkeypatch)
    for module, sizes in (
        (wide, {"WIDTH": 30, "DRAWS": 1, "STEPS": 10, "SCALES": (0.4, 1.0, 3.0)}),
        (start_solvers, {"WIDTH": 20, "DRAWS": 1, "SCALES": (0.25, 2.0)}),
    ):
        for name, value in {**sizes, "INPUTS": 2}.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(wide, "DECOMPOSED", dict.fromkeys(wide.DECOMPOSED, 1))


def linear_networks(monkeypatch):
    """Narrow networks and few draws of them."""
    sizes = {"LARGE": 60, "SMALL": 40, "DRAWS": 3, "WIDTH": 20, "STATES": 3, "APART": (0.5, 0.3)}
    for name, value in sizes.items():
        monkeypatch.setattr(length, name, value)
    monkeypatch.setattr(moments, "WIDTHS", (10, 20, 40))
    monkeypatch.setattr(moments, "DRAWS", 4)
