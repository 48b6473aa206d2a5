"""Experiments on recipes that take seconds."""

import pytest
import tiny
from rich.console import Console

from equilibria.experiments.registry import EXPERIMENTS
from equilibria.experiments.runner import execute

QUIET = Console(quiet=True)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Tiny recipes and sizes in the place of all others; the folder that they are in."""
    tiny.shrink(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def reproduce(small):
    """Run an experiment by its name: reproduce(name, **options) -> outcome."""

    def run(name, **options):
        fields = {"out": small / "out", "console": QUIET, "command": "typed", **options}
        return execute(EXPERIMENTS[name], **fields)

    return run
