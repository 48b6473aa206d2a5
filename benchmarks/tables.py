"""Print the measured figures as tables, from the files in results/.

``python benchmarks/tables.py`` prints all of them, as the documentation shows them;
``python benchmarks/tables.py --readme`` writes those of the README between its two marks.
"""

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Name of the file in results/, heading, the command that writes it, whether the README shows it.
TABLES = (
    ("digits", "Digits: three seeds", "make bench-digits", True),
    ("mnist", "MNIST", "make bench-mnist", True),
    ("digits-memory", "Memory of a training step, digits", "make bench-digits", True),
    ("mnist-memory", "Memory of a training step, MNIST", "make bench-mnist", False),
    ("solvers", "Time of a solve", "make bench", False),
)

BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def render(name: str, title: str, command: str, level: int) -> str:
    """One table with its heading, command and note; "not run" where results/ lacks the file."""
    path = ROOT / "results" / f"{name}.json"
    head = f"{'#' * level} {title}\n\n"
    if not path.exists():
        return f"{head}`{command}`: not run.\n"
    table = json.loads(path.read_text())
    lines = [
        "| " + " | ".join(str(cell) for cell in row) + " |"
        for row in (table["columns"], ["---"] * len(table["columns"]), *map(_row, table["rows"]))
    ]
    versions = ", ".join(f"{name} {number}" for name, number in table["versions"].items())
    return (
        f"{head}`{table['command']}` · {table['machine']} · {versions} · "
        f"commit {table['commit'][:10]} · {table['date']}\n\n"
        + "\n".join(lines)
        + f"\n\n{table['note']}\n"
    )


def _row(cells: list[object]) -> list[str]:
    return [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]


def page() -> str:
    """All tables."""
    return "\n".join(render(*table[:3], level=2) for table in TABLES)


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
    if parser.parse_args().readme:
        (ROOT / "README.md").write_text(readme())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
