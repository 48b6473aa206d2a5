"""A measurement as a file in results/: what was run, where, and what came out."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parents[1] / "results"

Cell = str | int | float | None


def write(
    name: str,
    *,
    command: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    note: str,
    code: str | None = None,
    recipe: dict[str, Any] | None = None,
) -> Path:
    """Write ``results/<name>.json`` whole or not at all.

    Args:
        name: Name of the table in `tables.TABLES`.
        command: What was typed.
        columns: A heading a column, with its unit.
        rows: A list a row.
        note: What a reader must know to judge the figures.
        code: The commit that was measured; None for the one that is checked out.
        recipe: The resolved recipe, where one was trained.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    table = {
        "command": command,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "note": note,
        "recipe": recipe,
        "commit": commit() if code is None else code,
        "machine": machine(),
        "versions": {name: version(name) for name in ("equilibria", "torch", "numpy")},
        "date": datetime.date.today().isoformat(),
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(table, indent=1) + "\n")
    os.replace(part, path)
    return path


def commit() -> str:
    """The commit that is checked out, with a word where files have changed since."""
    git = ["git", "-C", str(RESULTS.parent)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    source = [*git, "status", "--porcelain", "--", "src", "benchmarks"]
    changed = subprocess.run(source, capture_output=True, text=True, check=True).stdout.strip()
    return head.stdout.strip() + (" and changes" if changed else "")


def machine() -> str:
    """The hardware in words: what a figure depends on, and no name of a host."""
    words = f"{os.cpu_count()} cores {_processor()}"
    if torch.cuda.is_available():
        words += f", {torch.cuda.get_device_name()}"
    return words


def _processor() -> str:
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return platform.machine()
