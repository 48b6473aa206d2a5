"""A run that takes a moment to train."""

from pathlib import Path

from equilibria.run.cli.main import main

SMALL = ("--epochs", "2", "--model.width", "16", "--probes", "8", "--solver.rtol", "1e-3")
SMALL += ("--batch-size", "256")  # five steps an epoch


def train(folder: Path, *options: str) -> Path:
    """Train a tiny network on digits into `folder` and return it; `options` go before `SMALL`."""
    pairs = zip(SMALL[::2], SMALL[1::2], strict=True)
    small = [word for pair in pairs if pair[0] not in options for word in pair]
    assert main(["train", "digits", "--out", str(folder), *small, *options]) == 0
    return folder
