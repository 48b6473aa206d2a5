"""Small runs of every task: train them with one version of the library, read them with another.

    PYTHONPATH=FOLDER/package python tests/oracle/runs.py train FOLDER/old --old
    PYTHONPATH=src            python tests/oracle/runs.py train FOLDER/new
    PYTHONPATH=src            python tests/oracle/runs.py read FOLDER/old FOLDER/read
    python tests/oracle/runs.py compare FOLDER/old FOLDER/new
    python tests/oracle/runs.py compare FOLDER/old FOLDER/read

`train` makes three runs of each task, of 20 steps in 5 epochs. Their recipes name solver, adjoint
and all tolerances, so that new defaults change nothing; `RENAMED` lists what was renamed since,
which `--old` leaves as it was. `read` evaluates copies of runs. `compare` lists differences in the
losses and evaluations of each epoch and in the figures of the evaluation; both folders must come
from one machine.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

EPOCHS, STEPS = 5, 4
RENAMED: dict[str, str] = {}
"""Words of the recipes below, and what they are called since `before-core`."""

LIMITS = {"rtol": 1e-3, "atol": 0.0, "max_evals": 25, "patience": 20}
LINEAR = {"name": "GMRES", "restart": 20, "rtol": 1e-3, "atol": 0.0, "max_evals": 25}
SOLVES = {
    "anderson": {
        "solver": {"name": "Anderson", "history": 5, "damping": 1.0, "period": 1, **LIMITS},
        "adjoint": {"name": "Implicit", "linear": LINEAR},
    },
    "broyden": {
        "solver": {"name": "Broyden", "memory": None, **LIMITS},
        "adjoint": {"name": "JacobianFree"},
    },
    "picard": {
        "solver": {"name": "Picard", "damping": 0.9, **LIMITS},
        "adjoint": {"name": "Phantom", "steps": 2, "damping": 0.9},
    },
}
TRANSFORMER = {"name": "deq-transformer", "width": 16, "heads": 2, "inner": 24, "scale": 0.1}
MULTISCALE = {
    "channels": [8, 16],
    "expansion": 1,
    "halvings": 1,
    "projection": False,
    "initial": None,
}
CELL = {"name": "ERNN", "steps": 1, "start": "previous", "activation": "tanh", "step_size": 0.1}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {
        "task": {"name": "image_classification", "data": "digits", "shift": 1},
        "model": {"name": "dense", "width": 24, "bound": 0.9},
    },
    "regularised": {
        "task": {"name": "image_classification", "data": "digits"},
        "model": {"name": "dense", "width": 24, "bound": 100.0, "scale": 0.3},
        "regularizer": {"name": "JacobianPenalty", "gamma": 1.0, "probability": 0.5},
    },
    "images": {
        "task": {"name": "own_images", "data": "IMAGES"},
        "model": {"name": "mdeq", **MULTISCALE, "head_channels": [4, 8], "final": 16},
    },
    "masks": {
        "task": {"name": "image_segmentation", "data": "SCENES", "normalize": True},
        "model": {"name": "mdeq-segmentation", **MULTISCALE},
    },
    "text": {
        "task": {"name": "language_modeling", "unit": "characters", "length": 16, "file": "TEXT"},
        "model": {**TRANSFORMER, "memory": 8},
    },
    "copying": {
        "task": {"name": "copy_memory", "delay": 10},
        "model": TRANSFORMER,
    },
    "adding": {
        "task": {"name": "adding", "length": 20},
        "model": {"name": "recurrent", "hidden": 12, "cell": CELL},
    },
    "sequences": {
        "task": {"name": "sequence_classification", "data": "SEQUENCES"},
        "model": {"name": "recurrent", "hidden": 12, "readout": "mean", "cell": CELL},
    },
    "graph": {
        "task": {"name": "chains", "length": 12},
        "model": {"name": "ignn", "hidden": [8], "normalize": "row", "float64": True},
        "batch_size": 1,
        "eval_batch_size": 1,
    },
    "flow": {  # of all pairs, an evaluation would take most of the time
        "task": {"name": "optical_flow", "data": "layers", "samples": 16, "test": 4},
        "model": {"name": "deq-raft", "encoder": "small", "hidden": 16, "levels": 2, "radius": 2},
        "batch_size": 2,
    },
    "signal": {
        "task": {"name": "signal", "data": "PHOTO", "size": 24},
        "model": {"name": "imfn", "width": 24},
        "batch_size": 200,
        "eval_batch_size": 1000,
    },
}
COMMON = {
    "optimizer": {"name": "Adam", "lr": 3e-3},
    "schedule": {"name": "Constant"},
    "pretrain": None,
    "epochs": EPOCHS,
    "epoch_steps": STEPS,
    "batch_size": 16,
    "eval_batch_size": 64,
    "probes": 2,
}


def write_data(folder: Path) -> dict[str, str]:
    """Write small seeded data of each kind; return their paths by the words of `TASKS`."""
    rng = np.random.default_rng(0)
    for name in ("images/left", "images/right", "scenes/images", "scenes/masks"):
        (folder / name).mkdir(parents=True)
    for name in ("low", "high"):
        (folder / "sequences" / name).mkdir(parents=True)
    for k in range(24):
        picture = rng.integers(0, 256, (16, 16, 3), np.uint8)
        side = ("left", "right")[k % 2]
        picture[:, slice(0, 8) if side == "left" else slice(8, 16)] //= 4
        Image.fromarray(picture).save(folder / "images" / side / f"{k}.png")
        Image.fromarray(picture).save(folder / "scenes" / "images" / f"{k}.png")
        mask = (picture.mean(2) > 90).astype(np.uint8)
        Image.fromarray(mask).save(folder / "scenes" / "masks" / f"{k}.png")
        series = np.sin((1 + k % 2) * np.arange(30)[:, None] / [3, 5]) + rng.normal(0, 0.1, (30, 2))
        np.savez(folder / "sequences" / ("low", "high")[k % 2] / f"{k}.npz", series)
    (folder / "scenes" / "classes.txt").write_text("dark\nlight\n")
    (folder / "text.txt").write_text("".join(rng.choice([*"aab cde.\n"], 4000)))
    x, y = np.meshgrid(np.linspace(0, 6, 24), np.linspace(0, 4, 24))
    Image.fromarray((128 + 100 * np.sin(x) * np.cos(y)).astype(np.uint8)).save(folder / "photo.png")
    words = ("IMAGES", "images"), ("SCENES", "scenes"), ("SEQUENCES", "sequences")
    words += ("TEXT", "text.txt"), ("PHOTO", "photo.png")
    return {word: str(folder / name) for word, name in words}


def command(*words: str) -> None:
    """Run a command line of the version that Python finds; a failure ends this program."""
    from equilibria.run.cli.main import main

    if status := main([*words, "--quiet"]):
        sys.exit(f"equilibria {' '.join(words)} ended with {status}")


def fill(tree: Any, words: dict[str, str]) -> Any:
    """The recipe with paths and names in place of words."""
    if isinstance(tree, dict):
        return {words.get(key, key): fill(value, words) for key, value in tree.items()}
    return words.get(tree, tree) if isinstance(tree, str) else tree


def train(folder: Path, old: bool) -> None:
    """Train three runs of each task."""
    folder.mkdir(parents=True)
    words = write_data(folder / "data") | ({} if old else RENAMED)
    for task, own in TASKS.items():
        for seed, (solve, parts) in enumerate(SOLVES.items()):
            if own["model"]["name"] == "recurrent":  # its cell has the solver
                parts = {}
            recipe = folder / "recipes" / f"{task}-{solve}.yaml"
            recipe.parent.mkdir(exist_ok=True)
            tree = fill({**COMMON, **parts, **own, "seed": seed}, words)
            recipe.write_text(yaml.safe_dump(tree))
            command("train", str(recipe), "--out", str(folder / "runs" / recipe.stem))
            print(recipe.stem, flush=True)


def read(old: Path, new: Path) -> None:
    """Copy runs and evaluate the copies."""
    shutil.copytree(old / "data", new / "data")
    for run in sorted((old / "runs").iterdir()):
        copy = shutil.copytree(run, new / "runs" / run.name)
        (copy / "evaluation.json").unlink()
        command("evaluate", str(copy))
        print(run.name, flush=True)


def figures(tree: Any, name: str = "") -> dict[str, float]:
    """All numbers of a JSON file but times, by their path."""
    if isinstance(tree, dict):
        skipped = ("seconds", "throughput", "time")
        parts = (figures(v, f"{name}/{k}") for k, v in tree.items() if k not in skipped)
        return {key: value for part in parts for key, value in part.items()}
    number = isinstance(tree, int | float) and not isinstance(tree, bool)
    return {name: float(tree)} if number else {}


def summary(run: Path) -> dict[str, float]:
    """What a run says of its steps and of its evaluation."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    found = figures(json.loads((run / "evaluation.json").read_text()), "evaluation")
    for row in map(json.loads, lines):
        found |= figures(row.get("train", {}), f"step {row['step']}")
    return found


def compare(old: Path, new: Path) -> int:
    """Print what differs between the runs of two folders; return how many differ."""
    count = 0
    runs = sorted(path.name for path in (old / "runs").iterdir())
    for name in runs:
        before, after = summary(old / "runs" / name), summary(new / "runs" / name)
        wrong = [f"{key} is missing" for key in before.keys() - after.keys()]
        for key in before.keys() & after.keys():
            one, other = before[key], after[key]
            far = abs(one - other) > (1.0 if "evals" in key else 1e-3 * abs(one) + 1e-6)
            if far and not (math.isnan(one) and math.isnan(other)):
                wrong.append(f"{key}: {one:g} -> {other:g}")
        count += bool(wrong)
        print(f"{name}: {len(before)} figures, {len(wrong)} differ")
        print("".join(f"  {line}\n" for line in sorted(wrong)[:8]), end="")
    print(f"{count} of {len(runs)} runs differ")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in {
        "train": ["folder"],
        "read": ["old", "new"],
        "compare": ["old", "new"],
    }.items():
        each = commands.add_parser(name)
        for place in places:
            each.add_argument(place, type=lambda word: Path(word).absolute())
    commands.choices["train"].add_argument("--old", action="store_true", help="by the old names")
    given = parser.parse_args()
    if given.command == "train":
        train(given.folder, given.old)
    elif given.command == "read":
        read(given.old, given.new)
    else:
        return int(compare(given.old, given.new) > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
