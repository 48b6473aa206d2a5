"""What a figure depends on besides its settings: commit, versions, hardware, date."""

from __future__ import annotations

import datetime
import functools
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from equilibria.run.studies.identity import GENERATION

__all__ = ["CHANGED", "Origin", "git", "hardware"]

SOURCE = Path(__file__).resolve().parents[2]  # the package
PACKAGES = ("equilibria", "torch", "numpy")

CHANGED = " and changes"
"""Suffix of a commit: files of the package differed from it."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a row comes from, as it was when its measurement started.

    Attributes:
        commit: that was checked out; `UNKNOWN` where the package does not run from a checkout.
        versions: of packages, in one line.
        hardware: cores, processor and GPU in words; no name of a host.
        threads: of torch.
        date: of the start, YYYY-MM-DD.
        command: what was typed.
        generation: of the core, see `identity.GENERATION`; older records have none.
    """

    commit: str
    versions: str
    hardware: str
    threads: int
    date: str
    command: str = ""
    generation: int = 1

    @classmethod
    def now(cls, command: str = "", peers: Sequence[str] = ()) -> Origin:
        """Return what holds at this moment.

        Args:
            command: what was typed.
            peers: other packages whose version belongs to the figures.
        """
        return cls(
            commit=_commit(),
            versions=", ".join(f"{name} {v}" for name, v in _versions(tuple(peers)).items()),
            hardware=hardware(),
            threads=torch.get_num_threads(),
            date=datetime.date.today().isoformat(),
            command=command,
            generation=GENERATION,
        )

    @property
    def conditions(self) -> str:
        """What seconds depend on: threads and hardware."""
        return f"{self.threads} threads, {self.hardware}"

    def json(self) -> dict[str, Any]:
        """As plain data; `Origin(**data)` takes it back."""
        return asdict(self)


def _commit() -> str:
    top = git("rev-parse", "--show-toplevel")
    head = git("rev-parse", "HEAD")
    if top is None or head is None or Path(top).resolve() / "src" / "equilibria" != SOURCE:
        return "unknown"
    return head + (CHANGED if git("status", "--porcelain", "--", ":/src", ":/papers") else "")


def git(*words: str) -> str | None:
    """Return Git's output for the package's checkout; None if the command fails."""
    try:
        run = subprocess.run(
            ["git", "-C", str(SOURCE), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def _versions(peers: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in (*PACKAGES, *peers):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@functools.cache
def hardware() -> str:
    """Return cores, processor and GPU in words."""
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
