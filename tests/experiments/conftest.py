"""A study run in a folder of its own."""

import gc
from dataclasses import replace

import pytest
from rich.console import Console

from equilibria.experiments import runner
from equilibria.experiments.study import Study
from equilibria.experiments.training import Store
from equilibria.report import svg


@pytest.fixture(autouse=True, scope="session")
def _swift():
    """Memory is measured after a collection, which need not look through all modules each time."""
    import torch._dynamo  # noqa: F401, which optimisers import

    gc.freeze()


@pytest.fixture
def quick_pictures(monkeypatch):
    """Charts are drawn on axes, and the files that they are written to stay empty."""
    monkeypatch.setattr(svg, "_saved", lambda figure: "")


@pytest.fixture
def measured(tmp_path):
    """Measure a study, or other points in place of its own; what the views read of it."""

    def run(study: Study, points=None, **options):
        if points is not None:
            study = replace(study, points=lambda scale: points, peers=())
        console, path = Console(quiet=True), tmp_path / "rows.csv"
        path.unlink(missing_ok=True)
        store = Store(tmp_path / "runs", console)
        outcome = runner.execute(study, path=path, store=store, console=console, **options)
        assert not outcome.failed
        return runner.collect(study, path)

    return run
