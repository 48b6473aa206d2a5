"""Train a recipe with several seeds and record what its test set says.

``python benchmarks/train.py digits --seeds 0 1 2`` trains into runs/bench-digits-0 and so on, and
writes results/digits.json and results/digits-memory.json. A run that was interrupted is resumed, a
finished one is read.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record
import yaml
from tables import TABLES

ROOT = Path(__file__).parents[1]
COMMIT = "commit.txt"  # of the code that trained a run


def run(recipe: str, seed: int) -> Path:
    """Train one seed; the folder of its run."""
    folder = ROOT / "runs" / f"bench-{recipe}-{seed}"
    command = [sys.executable, "-m", "equilibria", "train", recipe]
    command += ["--seed", str(seed), "--out", str(folder)]
    began = record.commit()
    if folder.exists():
        command.append("--resume")
    subprocess.run(command, check=True)
    if not (folder / COMMIT).exists():
        (folder / COMMIT).write_text(began + "\n")
    return folder


def row(seed: int, folder: Path) -> list[record.Cell]:
    """The figures of one run, in the order of `COLUMNS`."""
    evaluation = json.loads((folder / "evaluation.json").read_text())
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    forward = evaluation["forward"]
    return [
        str(seed),
        round(100 * evaluation["accuracy"], 2),
        round(100 * evaluation["accuracy_at"]["1"], 2),
        round(100 * forward["status"]["CONVERGED"], 2),
        round(forward["evals"]["mean"], 1),
        int(forward["evals"]["max"]),
        round(evaluation["spectral_radius"]["mean"], 2),
        round(sum(epoch["seconds"] for epoch in epochs)),
    ]


COLUMNS = [
    "seed",
    "test accuracy, %",
    "after 1 evaluation, %",
    "converged, %",
    "evaluations, mean",
    "max",
    "spectral radius",
    "training, s",
]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", help="name of a recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="a run each")
    args = parser.parse_args()
    folders = [run(args.recipe, seed) for seed in args.seeds]
    rows = [row(seed, folder) for seed, folder in zip(args.seeds, folders, strict=True)]
    if len(rows) > 1:
        numbers = [[float(cell or 0) for cell in column] for column in zip(*rows, strict=True)]
        rows.append(["mean", *(round(statistics.fmean(column), 2) for column in numbers[1:])])
    command = next(command for name, _, command, _ in TABLES if name == args.recipe)
    record.write(
        args.recipe,
        command=command,
        columns=COLUMNS,
        rows=rows,
        note="Test set, tolerance and solver as in the recipe; converged: share of test samples "
        "with the status CONVERGED; training: seconds of all training steps, without evaluation.",
        **_origin(folders),
    )
    memory(args.recipe, command, folders[0])


def memory(recipe: str, command: str, folder: Path) -> None:
    """Record bytes of a training step against depth, as the first run measured them."""
    points = json.loads((folder / "memory.json").read_text())
    kinds = list(dict.fromkeys(point["kind"] for point in points))
    depths = sorted({point["evals"] for point in points})
    size = {(point["kind"], point["evals"]): point["bytes"] for point in points}
    record.write(
        f"{recipe}-memory",
        command=command,
        columns=["evaluations", *(f"{kind}, MiB" for kind in kinds)],
        rows=[
            [depth, *(_mebibytes(size.get((kind, depth))) for kind in kinds)] for depth in depths
        ],
        note="Peak bytes of forward and backward less parameters, gradients and optimiser state, "
        "one batch of the recipe.",
        **_origin([folder]),
    )


def _origin(folders: Sequence[Path]) -> dict[str, Any]:
    """The commits and the recipe of the runs."""
    commits = dict.fromkeys((folder / COMMIT).read_text().strip() for folder in folders)
    recipe = yaml.safe_load((folders[0] / "recipe.yaml").read_text())
    recipe.pop("seed", None)
    return {"code": ", ".join(commits), "recipe": recipe}


def _mebibytes(count: int | None) -> str:
    return "not run" if count is None else f"{count / 2**20:.2f}"


if __name__ == "__main__":
    main()
