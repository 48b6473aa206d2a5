"""Trains recipes with the default solver and with the one that was the default before.

    python benchmarks/recipes.py FOLDER [--recipes digits cora ...] [--seeds 3] [--text FILE]

Each recipe is trained as it is shipped and with `Anderson(period=3)` of the same history and
tolerance, once for each seed, in turns. Runs are kept in FOLDER and not repeated. Prints, for each
recipe and solver, the primary metric of the test set (mean and standard error over the seeds),
evaluations and products in the last epoch of training, and seconds of training.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

RECIPES = ("digits", "cora", "mdeq-cifar10-16", "lm-text")
SOLVERS = {"Auto": [], "Anderson, period 3": ["--solver.name", "Anderson", "--solver.period", "3"]}
METRICS = ("accuracy", "bits", "perplexity", "bits_per_character", "loss")


def train(recipe: str, solver: str, seed: int, folder: Path, text: str | None) -> dict[str, Any]:
    """Trains one run, unless it is there, and returns its results."""
    out = folder / f"{recipe}-{solver.split(',')[0].lower()}-{seed}"
    if not (out / "evaluation.json").exists():
        command = [sys.executable, "-m", "equilibria", "train", recipe, "--out", str(out)]
        command += ["--auto-resume", "--seed", str(seed), *SOLVERS[solver]]
        if recipe == "lm-text":
            command += ["--data", str(text)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    epochs = [each for each in epochs if "train" in each]
    test = json.loads((out / "evaluation.json").read_text())
    last = epochs[-1]["train"]
    metric = next(name for name in METRICS if name in test)
    return {
        "metric": metric,
        "quality": test[metric],
        "evals": last["forward"]["evals"]["mean"],
        "products": last["adjoint"]["evals"]["mean"],
        "seconds": sum(each["seconds"] for each in epochs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--text", help="text file that lm-text is trained on")
    given = parser.parse_args()
    if "lm-text" in given.recipes and given.text is None:
        parser.error("lm-text is trained on a text: give --text FILE, or leave it out of --recipes")
    print("| recipe | solver | metric | test | evaluations | products | seconds |")
    print("|---|---|---|---|---|---|---|")
    for recipe in given.recipes:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SOLVERS}
        for seed in range(given.seeds):
            for name in SOLVERS:
                runs[name].append(train(recipe, name, seed, given.folder, given.text))
        for name, several in runs.items():
            quality = [each["quality"] for each in several]
            error = statistics.stdev(quality) / math.sqrt(len(quality)) if len(quality) > 1 else 0
            mean = {
                key: statistics.fmean(each[key] for each in several)
                for key in ("quality", "evals", "products", "seconds")
            }
            print(
                f"| {recipe} | {name} | {several[0]['metric']} | {mean['quality']:.4f} ± "
                f"{error:.4f} | {mean['evals']:.1f} | {mean['products']:.1f} | "
                f"{mean['seconds']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
