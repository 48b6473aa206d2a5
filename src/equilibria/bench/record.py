"""A measurement as a file: what was run, where, with which versions, and what came out."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from equilibria.train import files

Cell = str | int | float | None

SOURCE = Path(__file__).resolve().parents[1]  # the package
VERSIONS = ("equilibria", "torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Figures for a reader.

    Attributes:
        title: what it shows.
        columns: a heading a column, with its unit.
        rows: a list a row; None is "not run".
        note: what a reader must know to judge the figures.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


def write(
    folder: Path,
    name: str,
    *,
    command: str,
    note: str = "",
    code: str | None = None,
    peers: Sequence[str] = (),
    **content: Any,
) -> Path:
    """Writes `<folder>/<name>.json` whole or not at all, and returns its path.

    Args:
        folder: made where it is missing.
        name: of the file.
        command: what was typed.
        note: what a reader must know to judge the figures.
        code: the commit that was measured; None for the one that is checked out.
        peers: other packages whose version belongs to the figures.
        content: what was measured: `columns` and `rows` of a single table, or `tables`; settings,
            single measurements, a recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = content.pop("tables", None)
    if tables is not None:
        content["tables"] = [asdict(table) for table in tables]
    whole = {
        "command": command,
        **content,
        "note": note,
        **origin(command, code=code, peers=peers),
    }
    path = folder / f"{name}.json"
    files.write_text(path, json.dumps(finite(whole), indent=1, ensure_ascii=False) + "\n")
    return path


def origin(command: str, *, code: str | None = None, peers: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a figure depends on beside its settings: command, commit, machine, date.

    Args:
        command: what was typed.
        code: the commit that was measured; None for the one that is checked out.
        peers: other packages whose version belongs to the figures.
    """
    return {
        "command": command,
        "commit": commit() if code is None else code,
        "machine": machine(),
        "versions": versions(peers),
        "date": datetime.date.today().isoformat(),
    }


def finite(tree: Any) -> Any:
    """The same tree for JSON, which knows neither NaN nor infinity: null in their place."""
    if isinstance(tree, Mapping):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(value) for value in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree


def commit() -> str | None:
    """The commit that is checked out, with a word where files have changed since.

    None where the package does not run from its own checkout.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / "equilibria" != SOURCE:
        return None
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    changed = _git("status", "--porcelain", "--", ":/src", ":/benchmarks")
    return head + (" and changes" if changed else "")


def source_digest() -> str:
    """A checksum of the package's source: with the same one, two measurements are of one code."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(str(path.relative_to(SOURCE)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _git(*words: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", "-C", str(SOURCE), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def versions(peers: Sequence[str] = ()) -> dict[str, str]:
    """Version by package, of those that are installed."""
    found: dict[str, str] = {}
    for name in (*VERSIONS, *peers):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


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
