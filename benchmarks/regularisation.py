"""Train digits with and without Jacobian regularisation, and draw what it does.

``python benchmarks/regularisation.py`` trains three seeds of each into runs/regularisation-..., one
after the other, and writes results/regularisation.json (after the last epoch),
results/regularisation-epochs.json (every epoch) and docs/figures/regularisation.svg, anew after
each run. A run that was interrupted is resumed, a finished one is read.
``python benchmarks/regularisation.py --draw`` draws the figure from the files in results/ alone.

The recipe is `digits-jr`, which has no bound on its weights, with the learning rate of `digits`:
its own is lower, and there the difference is smaller. Without the penalty it is the same recipe
with `--regulariser.name null`. Test solves may take 400 evaluations, so that those needed for the
tolerance are counted and not those allowed; training keeps the recipe's limit of 40.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record
import yaml

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "figures" / "regularisation.svg"
COMMIT = "commit.txt"  # of the code that trained a run
COMMAND = "python benchmarks/regularisation.py"

RECIPE = "digits-jr"
OPTIONS = [
    "--optimiser.lr",
    "5e-3",
    "--eval_solver.name",
    "AlternatingAnderson",
    "--eval_solver.rtol",
    "1e-3",
]
OPTIONS += ["--eval_solver.max_evals", "400"]
VARIANTS = {"without": ["--regulariser.name", "null"], "with": []}

EPOCH = [
    "penalty",
    "seed",
    "epoch",
    "evaluations in training",
    "evaluations in testing",
    "test samples converged, %",
    "spectral radius",
    "test accuracy, %",
]


def run(variant: str, seed: int) -> Path:
    """Train one seed; the folder of its run."""
    folder = ROOT / "runs" / f"regularisation-{variant}-{seed}"
    command = [sys.executable, "-m", "equilibria", "train", RECIPE, *OPTIONS, *VARIANTS[variant]]
    command += ["--seed", str(seed), "--out", str(folder)]
    began = record.commit()
    if folder.exists():
        command.append("--resume")
    subprocess.run(command, check=True)
    if not (folder / COMMIT).exists():
        (folder / COMMIT).write_text(began + "\n")
    return folder


def epochs(variant: str, seed: int, folder: Path) -> list[list[record.Cell]]:
    """The figures of each epoch of a run, in the order of `EPOCH`."""
    rows: list[list[record.Cell]] = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        epoch = json.loads(line)
        test = epoch["test"]
        rows.append(
            [
                variant,
                seed,
                epoch["epoch"],
                round(epoch["train"]["forward"]["evals"]["mean"], 3),
                round(test["forward"]["evals"]["mean"], 3),
                round(100 * test["forward"]["status"]["CONVERGED"], 2),
                round(epoch["spectral_radius"]["mean"], 4),
                round(100 * test["accuracy"], 2),
            ]
        )
    return rows


def write(folders: dict[tuple[str, int], Path]) -> None:
    """Write both tables from the runs there are."""
    curves = [
        row for (variant, seed), path in folders.items() for row in epochs(variant, seed, path)
    ]
    last = max(int(row[2] or 0) for row in curves)
    ends = [[*row[:2], *row[3:]] for row in curves if row[2] == last]
    means: list[list[record.Cell]] = []
    for variant in VARIANTS:
        mine = [row[2:] for row in ends if row[0] == variant]
        if mine:
            columns = zip(*mine, strict=True)
            numbers = [
                round(statistics.fmean(float(x or 0) for x in column), 2) for column in columns
            ]
            means.append([variant, "mean", *numbers])
    commits = dict.fromkeys((path / COMMIT).read_text().strip() for path in folders.values())
    recipe = yaml.safe_load((list(folders.values())[-1] / "recipe.yaml").read_text())
    recipe.pop("seed", None)
    common: dict[str, Any] = {"command": COMMAND, "code": ", ".join(commits), "recipe": recipe}
    record.write(
        "regularisation",
        columns=[name for name in EPOCH if name != "epoch"],
        rows=[*ends, *means],
        note="The recipe digits-jr at a learning rate of 5e-3, with its Jacobian penalty and "
        "without, after the last epoch. Evaluations: mean over samples, to a "
        "tolerance of 1e-3, of at most 40 in training and 400 in testing; spectral radius: mean "
        "over 64 test samples.",
        **common,
    )
    record.write(
        "regularisation-epochs",
        columns=EPOCH,
        rows=curves,
        note="The same after every epoch.",
        **common,
    )


def draw() -> None:
    """Draw evaluations, spectral radius and accuracy per epoch from the recorded table."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    table = json.loads((record.RESULTS / "regularisation-epochs.json").read_text())
    panels = ["evaluations in testing", "spectral radius", "test accuracy, %"]
    titles = ["evaluations of f for a test sample", "spectral radius at the solution"]
    titles += ["test accuracy, %"]
    grey = "#808080"  # on a light page and on a dark one
    style: Any = {
        "svg.hashsalt": "equilibria",  # the same drawing to the last byte
        "svg.fonttype": "path",
        "font.size": 9,
        **dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), grey
        ),
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(9.0, 2.9), layout="constrained")
        axes: Sequence[Any] = figure.subplots(1, 3)
        for axis, name, title in zip(axes, panels, titles, strict=True):
            column = table["columns"].index(name)
            for variant, colour in (("without", "#d1605e"), ("with", "#4e8ecb")):
                runs = _by_seed(table["rows"], variant, column)
                for values in runs:
                    axis.plot(range(1, len(values) + 1), values, color=colour, lw=0.8, alpha=0.45)
                mean = [statistics.fmean(each) for each in zip(*runs, strict=False)]
                axis.plot(range(1, len(mean) + 1), mean, color=colour, lw=2, label=variant)
            axis.set_title(title, fontsize=9)
            axis.set_xlabel("epoch")
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(color=grey, alpha=0.25, lw=0.6)
        axes[0].set_ylim(bottom=0)
        axes[1].set_ylim(bottom=0)
        axes[2].set_ylim(80, 100)
        axes[1].axhline(1.0, color=grey, lw=0.8, ls="--")
        axes[0].legend(title="Jacobian penalty", frameon=False)
        FIGURE.parent.mkdir(exist_ok=True)
        part = FIGURE.with_suffix(".part")
        figure.savefig(part, format="svg", transparent=True, metadata={"Date": None})
        os.replace(part, FIGURE)


def _by_seed(rows: Sequence[Sequence[Any]], variant: str, column: int) -> list[list[float]]:
    seeds = dict.fromkeys(row[1] for row in rows if row[0] == variant)
    return [[row[column] for row in rows if row[:2] == [variant, seed]] for seed in seeds]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="a run each")
    parser.add_argument("--draw", action="store_true", help="draw what is recorded, train nothing")
    args = parser.parse_args()
    folders: dict[tuple[str, int], Path] = {}
    for seed in [] if args.draw else args.seeds:
        for variant in VARIANTS:
            folders[variant, seed] = run(variant, seed)
            write(folders)
            draw()
    if args.draw:
        draw()


if __name__ == "__main__":
    main()
