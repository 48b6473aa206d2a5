"""A measurement as a file in results/: what was run, where, and what came out."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

RESULTS = Path(__file__).parents[1] / "results"

Cell = str | int | float | None


def write(
    name: str, *, command: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str
) -> Path:
    """Write ``results/<name>.json`` whole or not at all.

    Args:
        name: Name of the table in `tables.TABLES`.
        command: What was typed.
        columns: A heading a column, with its unit.
        rows: A list a row.
        note: What a reader must know to judge the figures.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    table = {
        "command": command,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "note": note,
        "machine": machine(),
        "versions": {name: version(name) for name in ("equilibria", "torch", "numpy")},
        "date": datetime.date.today().isoformat(),
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(table, indent=1) + "\n")
    os.replace(part, path)
    return path


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
