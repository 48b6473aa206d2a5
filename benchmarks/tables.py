"""Print the measured figures as tables, from the files in results/.

``python benchmarks/tables.py`` prints all of them, as the documentation shows them;
``python benchmarks/tables.py --readme`` writes those of the README between its two marks.
"""

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# Name of the file in results/, heading, the command that writes it, whether the README shows it.
TABLES = (
    ("digits", "Digits: three seeds", "make bench-digits", True),
    ("mnist", "MNIST", "make bench-mnist", True),
    (
        "regularisation",
        "Digits with and without Jacobian regularisation",
        "python benchmarks/regularisation.py",
        False,
    ),
    ("digits-memory", "Memory of a training step, digits", "make bench-digits", True),
    ("mnist-memory", "Memory of a training step, MNIST", "make bench-mnist", False),
    ("solvers", "Solvers beside torchdeq and SciPy", "equilibria bench solvers", False),
    ("adjoints", "Gradients", "equilibria bench adjoints", False),
    (
        "convergence-rules",
        "Rules that could say CONVERGED",
        "python benchmarks/convergence_rules.py",
        False,
    ),
    ("training", "Training steps", "equilibria bench training", False),
    ("compile", "Compiled models", "python benchmarks/compile.py", False),
    *(
        (f"reproduce/{name.replace('/', '-')}", title, f"equilibria reproduce {name}", False)
        for name, title in (
            ("deq/tables", "Sequence models: Tables 1 to 4 of Bai et al. 2019"),
            ("deq/convergence", "Weight-tied stacks converge with depth"),
            ("deq/growth", "Evaluations grow in training"),
            ("deq/solvers", "Solving beside unrolling"),
            ("deq/tolerance", "Perplexity against tolerance"),
            ("deq/memory", "Memory of a step against length and depth"),
            ("deq/imbalance", "Unequal evaluations within a batch"),
            ("jacobian/stability", "LayerNorm, weight norm, weight decay, Jacobian penalty"),
            ("jacobian/language", "Perplexity with and without the Jacobian penalty"),
            ("jacobian/toy", "The one-dimensional toy, with and without the Jacobian penalty"),
            ("jacobian/slope", "Slopes below and above one"),
            ("jacobian/growth", "Residuals and Jacobian norm grow in training, on images"),
            ("jacobian/tables", "A third of the evaluations, on images"),
            ("mdeq/tables", "Images: Table 3.1 of the thesis"),
            ("mdeq/convergence", "Residuals of each resolution, and larger images"),
            ("mdeq/receptive", "How far an output sees"),
            ("mdeq/memory", "Memory of a step on images"),
            ("initialisation/length", "Length variance near the threshold: Figure 1"),
            ("initialisation/moments", "Moments of wide linear networks, and their finite size"),
            ("initialisation/variance", "The variance of h*: Figure 2"),
            ("initialisation/radius", "The spectral radius at the fixed point: Figure 3"),
            ("initialisation/threshold", "Where plain iteration stops converging: Figure 4"),
            ("initialisation/solvers", "The same under alternating Anderson and Broyden"),
            ("initialisation/mnist", "Which starts train: Figure 5"),
            ("initialisation/transformer", "DEQ-Transformers: Figure 6 and Table 1"),
        )
    ),
)

# Tables of a file that other pages show by themselves.
SHORT = {
    "compile": (
        "Graph breaks of a training step",
        "Microseconds an evaluation, by what is compiled",
    ),
    "solvers": ("Solvers: summary", "Solvers: who converges"),
    "adjoints": (
        "Gradients: relative error",
        "Gradients: cosine with the exact one",
        "Gradients: milliseconds of a backward",
    ),
    "convergence-rules": (),
}

LONG = 60  # rows of a table that a reader unfolds only where needed

BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def render(name: str, title: str, command: str, level: int, *, drawing: bool = False) -> str:
    """The tables of one file with heading, command and note; "not run" where results/ lacks it.

    Args:
        drawing: show the file's drawing too, where there is one.
    """
    path = ROOT / "results" / f"{name}.json"
    head = f"{'#' * level} {title}\n\n"
    if not path.exists():
        return f"{head}`{command}`: not run.\n"
    file = json.loads(path.read_text())
    versions = ", ".join(f"{name} {number}" for name, number in file["versions"].items())
    commit = file["commit"][:10] if file["commit"] else "not of a checkout"
    head += f"`{file['command']}` · {file['machine']} · {versions} · "
    head += f"commit {commit} · {file['date']}\n\n"
    if "tables" not in file:
        return f"{head}{_grid(file)}\n\n{file['note']}\n"
    parts = [head + file["note"]]
    if drawing and path.with_suffix(".svg").exists():
        parts.append(f"![{title}](../results/{name}.svg)")
    for table in file["tables"]:
        grid = _grid(table)
        if len(table["rows"]) > LONG:
            grid = f"<details><summary>{len(table['rows'])} rows</summary>\n\n{grid}\n\n</details>"
        parts.append(f"{'#' * (level + 1)} {table['title']}\n\n{grid}")
        if table["note"]:
            parts.append(table["note"])
    return "\n\n".join(parts) + "\n"


def short(name: str) -> str:
    """The summary tables of one file, without the rest; "not run" where results/ lacks it."""
    command = next(table[2] for table in TABLES if table[0] == name)
    path = ROOT / "results" / f"{name}.json"
    if not path.exists():
        return f"`{command}`: not run.\n"
    file = json.loads(path.read_text())
    if "tables" not in file:
        return f"{_grid(file)}\n\n{file['note']}\n"
    parts: list[str] = []
    for table in file["tables"]:
        if table["title"] in SHORT[name]:
            heading = table["title"].partition(": ")[2].capitalize()
            parts += [f"**{heading}**", _grid(table), *([table["note"]] if table["note"] else [])]
    return "\n\n".join(parts) + "\n"


def _grid(table: dict[str, Any]) -> str:
    rows = (table["columns"], ["---"] * len(table["columns"]), *map(_row, table["rows"]))
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def _row(cells: list[object]) -> list[str]:
    return [
        f"{cell:.4g}" if isinstance(cell, float) else "–" if cell is None else str(cell)
        for cell in cells
    ]


def page() -> str:
    """All tables."""
    return "\n".join(render(*table[:3], level=2, drawing=True) for table in TABLES)


def readme() -> str:
    """The README with its tables made anew."""
    text = (ROOT / "README.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n".join(render(*table[:3], level=3) for table in TABLES if table[3])
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readme", action="store_true", help="write the tables of README.md")
    parser.add_argument("--short", choices=SHORT, help="print the summary tables of one file")
    arguments = parser.parse_args()
    if arguments.readme:
        (ROOT / "README.md").write_text(readme())
    elif arguments.short:
        print(short(arguments.short), end="")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
