"""A run that takes a moment to train."""

from pathlib import Path

from equilibria.cli.main import main

SMALL = ("--epochs", "2", "--model.width", "16", "--probes", "8", "--solver.rtol", "1e-3")
SMALL += ("--batch-size", "256")  # five steps an epoch


def train(folder: Path, *options: str) -> Path:
    """Train a tiny network on digits into `folder` and return it."""
    assert main(["train", "digits", "--out", str(folder), *SMALL, *options]) == 0
    return folder
